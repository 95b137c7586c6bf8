//! What must fail inside.
