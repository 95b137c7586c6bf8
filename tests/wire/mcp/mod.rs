mod hostile;
