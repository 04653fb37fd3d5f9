//! Buckets by URL.

use std::sync::Arc;

use milepost_model::Source;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, memory::InMemory};

use super::{Bucket, ObjectBackend, ObjectOptions};
use crate::error::{Error, Result};

/// Schemes that name a bucket.
pub(crate) const SCHEMES: [&str; 4] = ["file", "s3", "gs", "az"];

impl ObjectBackend {
    /// Opens `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://…` or `az://…`. Credentials come from the environment, by the
    /// names that the provider's own tools use.
    pub fn open(url: &str, options: ObjectOptions, source: Source) -> Result<Self> {
        let (store, prefix) = locate(url)?;
        Self::new(store, prefix, options, source)
    }

    /// A bucket in memory: for tests.
    pub fn in_memory() -> Arc<dyn ObjectStore> {
        Arc::new(InMemory::new())
    }
}

impl Bucket {
    /// The place that a URL names.
    pub fn open(url: &str) -> Result<Self> {
        let (store, prefix) = locate(url)?;
        Ok(Self::new(store, prefix))
    }
}

/// The store that a URL names, and the prefix in it.
fn locate(url: &str) -> Result<(Arc<dyn ObjectStore>, &str)> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| Error::invalid(url, "it is not SCHEME://PLACE"))?;
    if scheme == "file" {
        return Ok((directory(url, rest)?, ""));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(Error::invalid(url, format!("it names no bucket: use {scheme}://BUCKET/PREFIX")));
    }
    Ok((remote(url, scheme, bucket)?, prefix))
}

fn directory(url: &str, path: &str) -> Result<Arc<dyn ObjectStore>> {
    if path.is_empty() {
        return Err(Error::invalid(url, "it names no directory: use file:///DIR"));
    }
    let failed = |why: String| Error::Io { what: format!("opening the directory {path}"), why };
    crate::private::create_dir_all(path.as_ref()).map_err(|error| failed(error.to_string()))?;
    let store = LocalFileSystem::new_with_prefix(path).map_err(|error| failed(error.to_string()))?;
    // Durable means that a power cut cannot take it back.
    Ok(Arc::new(store.with_fsync(true)))
}

/// Waiting and trying again, in one place. A request gets an answer, or an error, within about a minute; whoever wrote
/// then reads back what became of it.
#[cfg(feature = "remote")]
mod patience {
    use std::time::Duration;

    use object_store::{BackoffConfig, RetryConfig};

    /// For a connection.
    pub const CONNECT: &str = "5 seconds";
    /// For one answer.
    pub const ANSWER: &str = "20 seconds";
    /// From the first try on, no try begins later.
    const GIVE_UP_AFTER: Duration = Duration::from_secs(40);
    const MAX_RETRIES: usize = 30;
    /// Pauses between tries are drawn at random, from the first up to three times the one before.
    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    const LONGEST_PAUSE: Duration = Duration::from_secs(5);

    pub fn retry() -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff: LONGEST_PAUSE, base: 3.0 },
            max_retries: MAX_RETRIES,
            retry_timeout: GIVE_UP_AFTER,
        }
    }
}

#[cfg(feature = "object-s3")]
fn s3(url: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    use object_store::ClientConfigKey::{ConnectTimeout, Timeout};
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey::Client, S3ConditionalPut};
    let builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_config(Client(ConnectTimeout), patience::CONNECT)
        .with_config(Client(Timeout), patience::ANSWER)
        .with_retry(patience::retry());
    let store = builder.build().map_err(|error| Error::invalid(url, error.to_string()))?;
    Ok(Arc::new(store))
}

#[cfg(feature = "object-gs")]
fn gs(url: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    use object_store::ClientConfigKey::{ConnectTimeout, Timeout};
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey::Client};
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_config(Client(ConnectTimeout), patience::CONNECT)
        .with_config(Client(Timeout), patience::ANSWER)
        .with_retry(patience::retry());
    Ok(Arc::new(builder.build().map_err(|error| Error::invalid(url, error.to_string()))?))
}

#[cfg(feature = "object-az")]
fn az(url: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    use object_store::ClientConfigKey::{ConnectTimeout, Timeout};
    use object_store::azure::{AzureConfigKey::Client, MicrosoftAzureBuilder};
    let builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(bucket)
        .with_config(Client(ConnectTimeout), patience::CONNECT)
        .with_config(Client(Timeout), patience::ANSWER)
        .with_retry(patience::retry());
    Ok(Arc::new(builder.build().map_err(|error| Error::invalid(url, error.to_string()))?))
}

#[cfg_attr(not(feature = "remote"), expect(unused_variables, reason = "only remote buckets have names"))]
fn remote(url: &str, scheme: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    // The client asks the process which implementation of TLS to use. If the program has said so before, that holds.
    #[cfg(feature = "remote")]
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    match scheme {
        #[cfg(feature = "object-s3")]
        "s3" => s3(url, bucket),
        #[cfg(feature = "object-gs")]
        "gs" => gs(url, bucket),
        #[cfg(feature = "object-az")]
        "az" => az(url, bucket),
        other => Err(Error::invalid(
            url,
            format!("this program was built without {other}: build it with the feature object-{other}"),
        )),
    }
}
