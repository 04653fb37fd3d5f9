//! Buckets by URL.

use std::sync::Arc;

use milepost_model::Source;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, memory::InMemory};

use super::{ObjectBackend, ObjectOptions};
use crate::error::{Error, Result};

/// Schemes that name a bucket.
pub(crate) const SCHEMES: [&str; 4] = ["file", "s3", "gs", "az"];

impl ObjectBackend {
    /// Opens `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://…` or `az://…`. Credentials come from the environment, by the
    /// names that the provider's own tools use.
    pub fn open(url: &str, options: ObjectOptions, source: Source) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| Error::invalid(url, "it is not SCHEME://PLACE"))?;
        if scheme == "file" {
            return Self::new(directory(url, rest)?, "", options, source);
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(Error::invalid(url, format!("it names no bucket: use {scheme}://BUCKET/PREFIX")));
        }
        Self::new(remote(url, scheme, bucket)?, prefix, options, source)
    }

    /// A bucket in memory: for tests.
    pub fn in_memory() -> Arc<dyn ObjectStore> {
        Arc::new(InMemory::new())
    }
}

fn directory(url: &str, path: &str) -> Result<Arc<dyn ObjectStore>> {
    if path.is_empty() {
        return Err(Error::invalid(url, "it names no directory: use file:///DIR"));
    }
    let failed = |why: String| Error::Io { what: format!("opening the directory {path}"), why };
    std::fs::create_dir_all(path).map_err(|error| failed(error.to_string()))?;
    let store = LocalFileSystem::new_with_prefix(path).map_err(|error| failed(error.to_string()))?;
    // Durable means that a power cut cannot take it back.
    Ok(Arc::new(store.with_fsync(true)))
}

#[cfg(feature = "object-s3")]
fn s3(url: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
    let builder =
        AmazonS3Builder::from_env().with_bucket_name(bucket).with_conditional_put(S3ConditionalPut::ETagMatch);
    let store = builder.build().map_err(|error| Error::invalid(url, error.to_string()))?;
    Ok(Arc::new(store))
}

#[cfg(feature = "object-gs")]
fn gs(url: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    let builder = object_store::gcp::GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
    Ok(Arc::new(builder.build().map_err(|error| Error::invalid(url, error.to_string()))?))
}

#[cfg(feature = "object-az")]
fn az(url: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    let builder = object_store::azure::MicrosoftAzureBuilder::from_env().with_container_name(bucket);
    Ok(Arc::new(builder.build().map_err(|error| Error::invalid(url, error.to_string()))?))
}

#[cfg_attr(
    not(any(feature = "object-s3", feature = "object-gs", feature = "object-az")),
    expect(unused_variables, reason = "only remote buckets have names")
)]
fn remote(url: &str, scheme: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
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
