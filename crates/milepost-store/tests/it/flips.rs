//! flips
