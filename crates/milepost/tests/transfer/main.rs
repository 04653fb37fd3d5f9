//! Transfers through the public face: bundles, copies, exports and older files, from and into real stores.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::large_futures)]

mod bundle;
mod copies;
mod exports;
mod older;
mod scene;
