//! Commands and file operations below one folder, for a caller on a Unix socket or TCP.
