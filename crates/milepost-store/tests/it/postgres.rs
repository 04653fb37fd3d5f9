//! The same rules on a real PostgreSQL server. `MILEPOST_TEST_POSTGRES` holds its URL (`scripts/test` starts one) or `none`:
//! then there is nothing to test here. Every test has a schema of its own.

mod bad_days;
mod cluster;
mod faults;
mod old_nodes;
mod proxy;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use milepost_model::Source;
use milepost_store::conformance::{self, Place};
use milepost_store::postgres::{LeaseClock, PostgresBackend, PostgresOptions};
use milepost_store::{Backend, Result};

const VARIABLE: &str = "MILEPOST_TEST_POSTGRES";

/// The server's URL.
pub fn server() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|url| !url.is_empty() && url != "none")
}

/// A run that tested nothing here must not look like one that passed.
#[test]
fn a_server_is_named_or_left_out_on_purpose() {
    let is_said = std::env::var(VARIABLE).is_ok_and(|url| !url.is_empty());
    assert!(
        is_said,
        "PostgreSQL was not tested: {VARIABLE} names no server. Run `scripts/with-postgres cargo test`, or set it to \
         `none` to leave PostgreSQL out."
    );
}

/// A connection of one's own, to look at the tables or to stand in the way.
pub async fn connect(url: &str) -> tokio_postgres::Client {
    let plain: tokio_postgres::Config = url.split('?').next().unwrap().parse().unwrap();
    let (client, connection) = plain.connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A schema that nobody else uses.
pub struct Scheme {
    server: String,
    pub name: String,
    text_index: bool,
}

impl Scheme {
    pub fn new(what: &str) -> Self {
        Self::on(&server().unwrap(), what)
    }

    pub fn on(server: &str, what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        let name = format!("t_{what}_{}_{number}_{}", std::process::id(), time % 1_000_000_000);
        Self { server: server.to_owned(), name, text_index: true }
    }

    pub fn url(&self) -> String {
        let joint = if self.server.contains('?') { '&' } else { '?' };
        format!("{}{joint}schema={}", self.server, self.name)
    }

    /// A connection of one's own to the same server.
    pub async fn connect(&self) -> tokio_postgres::Client {
        connect(&self.server).await
    }

    pub async fn drop_schema(&self) {
        let client = self.connect().await;
        client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name)).await.unwrap();
    }
}

#[async_trait]
impl Place for Scheme {
    async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
        let mut options = PostgresOptions::default();
        options.text_index = self.text_index;
        options.clock = LeaseClock::Source;
        options.connections = 4;
        Ok(Arc::new(PostgresBackend::open(&self.url(), &options, source).await?))
    }
}

macro_rules! tests {
    ($($rule:ident,)*) => {
        mod rules {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $rule() {
                    if server().is_none() {
                        return;
                    }
                    let place = Scheme::new("rule");
                    conformance::$rule(&place).await.unwrap();
                    place.drop_schema().await;
                }
            )*
        }
    };
}

milepost_store::conformance_rules!(tests);

/// A store that was made without a text index keeps every rule too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_rules_hold_without_a_text_index() {
    if server().is_some() {
        conformance::all(|| Scheme { text_index: false, ..Scheme::new("plain") }).await.unwrap();
    }
}

/// Nothing is kept in a connection: a pooler may give every statement another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_hold_behind_a_pooler_in_transaction_mode() {
    let Some(server) = server() else { return };
    let pooler = cluster::Pooler::start(&server);
    let rules = [
        "acknowledged_appends_are_there_after_reopening",
        "an_old_epoch_is_fenced",
        "racing_appends_never_interleave",
        "racing_claims_have_one_winner",
        "large_blobs_come_back_whole",
        "sessions_are_filtered",
        "text_is_found_where_there_is_an_index",
        "a_check_finds_nothing_while_another_process_writes",
        "compacting_changes_nothing",
        "redaction_leaves_a_whole_log",
        "reindexing_changes_nothing",
    ];
    for rule in conformance::RULES.iter().filter(|rule| rules.contains(&rule.name)) {
        let place = Scheme::on(&pooler.url(), "pooled");
        (rule.check)(&place).await.unwrap_or_else(|failure| panic!("{}: {failure}", rule.name));
        place.drop_schema().await;
    }
}

#[test]
fn three_processes_on_one_server_are_linearizable() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("linear");
    crate::linear::three_processes(&place.url());
    crate::child::runtime().block_on(place.drop_schema());
}
