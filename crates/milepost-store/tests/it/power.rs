//! power
