//! Power cuts and disk faults for tests.
//!
//! A child program runs under a recorder (`recorder.c`) that notes every change of a directory, every sync and every
//! line of standard output in one order. [`record`] turns that into a [`Trace`]; [`Trace::image`] writes the directory
//! as a disk might hold it if the power had gone at a given moment. [`Fault`] and [`FaultSwitch`] make syncs and writes
//! of a child fail. What a crash may do to a disk is written in `replay.rs` and nowhere else.
//!
//! ```ignore
//! let room = tempfile::tempdir_in(harness::fast_dir())?;
//! let (store, image) = (room.path().join("store"), room.path().join("image"));
//! std::fs::create_dir(&store)?;
//! let mut trace = harness::record(&store, &room.path().join("trace"), Command::new(CHILD).arg(&store))?;
//! assert!(trace.status().success());
//! for cut in trace.cuts(3_000, 1) {
//!     let survived = trace.image(cut, &image)?;
//!     // Open the store in `image`; every line of `survived.acks` must hold. Print `cut` if it does not:
//!     // the same trace and cut give the same image.
//! }
//! ```
#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

mod faults;
mod powercut;
mod replay;
mod replay_tests;
mod rng;
mod trace;

pub use faults::{Fault, FaultSwitch, recorder_library};
pub use powercut::{Cut, Image, Recording, Trace, fast_dir, record};
pub use rng::Rng;
