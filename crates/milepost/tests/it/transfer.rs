//! Transfers through the public face: bundles, copies, exports and older files, from and into real stores.

mod bundle;
mod copies;
mod exports;
mod older;
mod redacted_copies;
mod round_trips;
mod scene;
mod secrets;
