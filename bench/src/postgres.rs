//! The PostgreSQL server that both sides save to: an empty database for each run, and how large it became.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls};

use crate::Result;

/// A server that is there for benchmarks alone.
#[derive(Debug)]
pub struct Server {
    url: String,
    runtime: Runtime,
    databases: AtomicU32,
}

impl Server {
    /// The server at a URL, of which any database will do.
    pub fn new(url: &str) -> Result<Self> {
        // Asking is rare and brief: the thread that waits for an answer also runs the connection.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Self { url: url.to_owned(), runtime, databases: AtomicU32::new(0) })
    }

    /// A new database, removed when dropped.
    pub fn database(&self) -> Result<Database<'_>> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("bench_{}_{number}", std::process::id());
        self.run(&self.url, &[&format!("CREATE DATABASE {name}")])?;
        Ok(Database { server: self, url: with_database(&self.url, &name)?, name })
    }

    /// The server's version and the settings that matter here, in words.
    pub fn words(&self) -> Result<String> {
        let settings = ["server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers"];
        self.with(&self.url, async |client| {
            let mut words = Vec::new();
            for name in settings {
                let value: String = client.query_one(&format!("SHOW {name}"), &[]).await?.get(0);
                words.push(format!("{name} {value}"));
            }
            Ok(words.join(", "))
        })
    }

    fn with<T>(&self, url: &str, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        let config: tokio_postgres::Config = url.parse()?;
        self.runtime.block_on(async {
            let (client, connection) = config.connect(NoTls).await?;
            let connection = tokio::spawn(connection);
            let done = work(client).await;
            drop(connection.await);
            done
        })
    }

    fn run(&self, url: &str, statements: &[&str]) -> Result<()> {
        self.with(url, async |client| {
            for statement in statements {
                client.batch_execute(statement).await?;
            }
            Ok(())
        })
    }
}

/// A database of one run.
#[derive(Debug)]
pub struct Database<'a> {
    server: &'a Server,
    name: String,
    url: String,
}

impl Database<'_> {
    /// Its URL, for Milepost and for its peers.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Has the server do its other work now, so that it does not disturb the next run.
    pub fn settle(&self) -> Result<()> {
        self.server.run(&self.url, &["VACUUM", "CHECKPOINT"])
    }

    /// Bytes of all tables with their indexes and side tables, after the server tidied up.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.tables()?.iter().map(|(_, bytes)| bytes).sum())
    }

    /// The same, one by one, the largest first.
    pub fn tables(&self) -> Result<Vec<(String, u64)>> {
        self.settle()?;
        let sql = "SELECT relname::text, pg_total_relation_size(oid) FROM pg_class
                   WHERE relkind = 'r' AND relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
                   ORDER BY 2 DESC";
        self.server.with(&self.url, async |client| {
            let rows = client.query(sql, &[]).await?;
            Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1) as u64)).collect())
        })
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // The whole server is removed in the end.
        let _ = self.server.run(&self.server.url, &[&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)]);
    }
}

/// The URL of another database of the same server.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (base, options) = url.split_once('?').map_or((url, None), |(base, options)| (base, Some(options)));
    let (host, _) =
        base.rsplit_once('/').filter(|(host, _)| !host.ends_with('/')).ok_or("the URL names no database")?;
    Ok(options.map_or_else(|| format!("{host}/{name}"), |options| format!("{host}/{name}?{options}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_everything_but_its_database() {
        let url = "postgres://me@host:1/one?sslmode=disable";
        assert_eq!(with_database(url, "two").unwrap(), "postgres://me@host:1/two?sslmode=disable");
        assert!(with_database("postgres://host", "two").is_err());
    }
}
