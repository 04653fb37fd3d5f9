//! The rules every backend keeps, each as a function that tries to break one of them.
//!
//! A backend is tested through a [`Place`]: somewhere fresh and empty where it can be opened, opened
//! again, and opened twice at once. Run [`all`], or make one test of each rule with
//! [`conformance_rules!`](crate::conformance_rules):
//!
//! ```
//! use std::sync::{Arc, OnceLock};
//!
//! use async_trait::async_trait;
//! use milepost_model::Source;
//! use milepost_store::conformance::{self, Place};
//! use milepost_store::memory::MemoryBackend;
//! use milepost_store::{Backend, Result};
//!
//! #[derive(Default)]
//! struct InMemory(OnceLock<MemoryBackend>);
//!
//! #[async_trait]
//! impl Place for InMemory {
//!     async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
//!         // Clones share their content: another clone is another opening of the same place.
//!         Ok(Arc::new(self.0.get_or_init(|| MemoryBackend::new(source)).clone()))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! conformance::records_are_compared_and_set(&InMemory::default()).await.unwrap();
//! # }
//! ```
//!
//! Most rules speak to the backend with raw batches, whose entries mean nothing; some need meaning
//! and go through a [`Store`](crate::Store). Nothing here knows of a particular backend.

mod blobs;
mod branches;
mod histories;
mod leases;
mod lists;
mod log;
mod races;
mod records;
mod rewrites;
mod scene;
mod sessions;
mod shared;
mod whole;

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use milepost_model::Source;

use crate::backend::Backend;
use crate::error::{Error, Result};

pub use blobs::*;
pub use branches::*;
pub use histories::*;
pub use leases::*;
pub use lists::*;
pub use log::*;
pub use races::*;
pub use records::*;
pub use rewrites::*;
pub use sessions::*;
pub use shared::*;
pub use whole::*;

/// A place to store that is empty at first. A rule is given one of its own.
#[async_trait]
pub trait Place: Send + Sync {
    /// Opens what is kept here. Opened again after a close it must be the same; opened while it is
    /// open it must behave as another process on the same data would. Time and ids come from
    /// `source`, which is one and the same for all openings of a place.
    async fn open(&self, source: Source) -> Result<Arc<dyn Backend>>;
}

/// A rule that was not kept.
#[derive(Clone)]
pub struct Failure {
    what: String,
    at: Option<&'static Location<'static>>,
}

impl Failure {
    /// Longer descriptions are cut: they hold whole payloads.
    const MAX_CHARS: usize = 2000;

    #[track_caller]
    fn new(what: impl Into<String>) -> Self {
        let mut what: String = what.into();
        if let Some((end, _)) = what.char_indices().nth(Self::MAX_CHARS) {
            what.truncate(end);
            what.push('…');
        }
        Self { what, at: Some(Location::caller()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(at) => write!(f, "{} ({}:{})", self.what, at.file(), at.line()),
            None => f.write_str(&self.what),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::new(format!("an error where none belongs: {error}"))
    }
}

/// Whether a rule was kept.
pub type Outcome<T = ()> = Result<T, Failure>;

/// What a rule returns when it is called through the list.
pub type Check<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// A rule: its name and the function that tries to break it.
#[derive(Clone, Copy)]
pub struct Rule {
    /// The function's name.
    pub name: &'static str,
    /// The function.
    pub check: for<'a> fn(&'a dyn Place) -> Check<'a>,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Calls a macro with the names of all rules, so that a test runner can make a test of each.
#[macro_export]
macro_rules! conformance_rules {
    ($callback:ident) => {
        $callback! {
            acknowledged_appends_are_there_after_reopening,
            a_batch_is_stored_whole_or_not_at_all,
            a_wrong_length_is_a_conflict,
            an_old_epoch_is_fenced,
            an_append_without_a_lease_needs_none,
            a_replaced_timeline_grows_no_more,
            the_same_batch_gets_the_same_answer,
            a_session_begins_once,
            what_is_not_there_is_not_found,
            ranges_give_what_was_asked_for,
            racing_appends_never_interleave,
            racing_openings_leave_one_head,
            racing_claims_have_one_winner,
            a_lease_keeps_others_out_until_it_expires,
            a_lease_can_be_taken_over,
            an_append_renews_the_lease,
            a_released_lease_is_free,
            an_old_lease_is_neither_renewed_nor_released,
            a_branch_shares_its_beginning_by_reference,
            a_branch_begins_at_an_entry_that_is_there,
            a_restore_moves_the_head_and_keeps_the_old_timeline,
            a_named_head_lives_beside_the_main_one,
            timelines_are_listed_as_they_were_made,
            a_session_with_branches_is_not_removed,
            removing_a_session_removes_all_of_it,
            blobs_are_kept_once_and_read_in_order,
            blobs_are_listed_in_pages,
            only_idle_blobs_that_nothing_needs_are_dropped,
            large_blobs_come_back_whole,
            records_are_compared_and_set,
            records_are_listed_by_key,
            records_are_listed_by_due_time,
            record_kinds_are_listed,
            sessions_are_filtered,
            sessions_are_paged_each_exactly_once,
            trashed_and_hidden_sessions_are_listed_on_demand,
            marks_are_filtered,
            marks_are_ordered_and_found_by_name,
            marks_of_many_sessions_are_counted,
            keyframes_are_the_newest_before_an_entry,
            a_rewrite_happens_with_the_append_that_records_it,
            a_truncated_timeline_ends_earlier,
            what_a_branch_needs_is_not_truncated,
            a_rebuild_replaces_derived_rows,
            usage_adds_up,
            workspaces_are_isolated,
            text_is_found_where_there_is_an_index,
            odd_texts_come_back_as_they_were,
            large_payloads_come_back_whole,
            limits_are_errors_that_store_nothing,
            a_closed_store_says_so,
            a_check_finds_nothing_while_another_process_writes,
            compacting_changes_nothing,
            a_session_goes_on_where_it_was_left,
            a_second_writer_is_told_who_holds_the_session,
            the_same_append_is_stored_once,
            branches_and_restores_read_as_they_should,
            pruning_and_purging_keep_every_other_checkpoint,
            pruning_goes_with_an_append,
            deleting_keeps_what_branches_need,
            what_is_kept_for_branches_says_what_it_said,
            a_clock_that_steps_back_changes_no_order,
            redaction_leaves_a_whole_log,
            reindexing_changes_nothing,
            writers_without_a_lease_never_interleave,
            a_writer_that_knew_a_session_before_it_was_cut_is_refused,
            a_fork_happens_in_one_step,
        }
    };
}

macro_rules! list {
    ($($name:ident,)*) => {
        /// Every rule.
        pub const RULES: &[Rule] = &[$(Rule { name: stringify!($name), check: |place| Box::pin($name(place)) },)*];
    };
}

conformance_rules!(list);

/// Tries to break every rule, each in a place of its own. The failure names every rule that was broken.
pub async fn all<P: Place>(fresh: impl Fn() -> P) -> Outcome {
    let mut broken = Vec::new();
    for rule in RULES {
        if let Err(failure) = (rule.check)(&fresh()).await {
            broken.push(format!("{}: {failure}", rule.name));
        }
    }
    match broken.is_empty() {
        true => Ok(()),
        false => Err(Failure { what: broken.join("\n"), at: None }),
    }
}
