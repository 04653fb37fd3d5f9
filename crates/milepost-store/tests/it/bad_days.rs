//! bad_days
