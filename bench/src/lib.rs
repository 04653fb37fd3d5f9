//! Side-by-side benchmarks: the same work, done by Milepost and by its peers, in the same run.
//!
//! A figure is a ratio held against a bar ([`report`]). What is saved comes from [`workload`], whoever saves it
//! implements [`saver::Saver`], and [`saver`] does the timing, so that Milepost and its peers are measured by the
//! same code. Peers written in Python get the same workload as a file ([`peers`]).
//!
//! Nothing here is a promise to users: a benchmark may read the clock, start threads and print.

// The workspace bans the wall clock and threads outside one module; timing is all that this crate does.
#![allow(clippy::disallowed_methods)]

pub mod bare;
pub mod groups;
pub mod machine;
pub mod milepost;
pub mod peers;
pub mod plain_sqlite;
pub mod postgres;
pub mod report;
pub mod saver;
pub mod stats;
pub mod workload;

/// Any failure: a benchmark that cannot run says why and stops.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;
