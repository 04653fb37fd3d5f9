//! Large payloads and chunks of files in an object store beside the database.
//!
//! A blob above the threshold goes into the bucket under a name of its own, and only then a *stub* with that name into
//! the table, in the blob's place. So whichever write fails, nothing refers to what is not there; what may be left is an
//! object that nothing refers to. A name is used for one put and never again, so that an object that is old and
//! unreferenced stays unreferenced: `drop_blobs` deletes it.
//!
//! A stub is `01 ‖ version ‖ the blob's length as u64, big endian ‖ 16 bytes of its put`. The first byte of a blob's own
//! form is never 01.

use std::collections::BTreeSet;

use milepost_model::{Source, Timestamp, WorkspaceId};
use tokio_postgres::types::Type;

use super::db::{Db, column, escape};
use crate::backend::{Blob, BlobId};
use crate::error::{Error, Result};
use crate::object::Bucket;
use crate::system::system_source;

const STUB: u8 = 1;
const VERSION: u8 = 1;
const STUB_BYTES: usize = 26;
/// A stub is sent at most so long after its first object was: well within the time that objects are left alone.
const WRITE_WITHIN_MS: i64 = 600_000;

/// SQL for the length of the blob in column `body`, wherever it is.
pub(super) const LENGTH: &str = "CASE WHEN octet_length(body) = 26 AND get_byte(body, 0) = 1
     THEN ('x' || encode(substring(body FROM 3 FOR 8), 'hex'))::bit(64)::int8 ELSE octet_length(body)::int8 END";

/// Where blobs go that the database is not to hold.
pub(super) struct Outside {
    bucket: Bucket,
    /// Blobs of more bytes go there.
    above: usize,
    /// An object is left alone for so long after it was put, as its stub may be on the way.
    orphan_ms: i64,
    source: Source,
    /// Names of puts. They must differ between processes even where a test gives all the same source.
    puts: Source,
}

/// What stands in the table for blobs that were put.
pub(super) struct Stubs {
    blobs: Vec<Blob>,
    took_ms: i64,
}

impl Stubs {
    /// The blobs for the table, unless it is too late to refer to what was put.
    pub fn in_time(self) -> Result<Vec<Blob>> {
        if self.took_ms >= WRITE_WITHIN_MS {
            return Err(Error::Busy { what: "putting payloads".into(), waited_ms: self.took_ms as u64 });
        }
        Ok(self.blobs)
    }
}

struct Stub {
    put: [u8; 16],
}

impl Stub {
    fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&[STUB, VERSION])?;
        let put = rest.get(8..)?.try_into().ok()?;
        Some(Self { put })
    }

    fn write(put: [u8; 16], len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(STUB_BYTES);
        bytes.extend_from_slice(&[STUB, VERSION]);
        bytes.extend_from_slice(&(len as u64).to_be_bytes());
        bytes.extend_from_slice(&put);
        bytes
    }
}

fn is_stub(bytes: &[u8]) -> bool {
    bytes.first() == Some(&STUB)
}

fn folder(workspace: &WorkspaceId) -> String {
    format!("{workspace}/payload")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name(id: &BlobId, put: &[u8; 16]) -> String {
    format!("{}-{}", hex(&id.0), hex(put))
}

impl Outside {
    pub fn new(url: &str, above: u64, orphan_ms: i64, source: Source) -> Result<Self> {
        let above = usize::try_from(above).unwrap_or(usize::MAX);
        Ok(Self { bucket: Bucket::open(url)?, above, orphan_ms, source, puts: system_source()? })
    }

    /// Puts what is large into the bucket; what comes back is for the table.
    pub async fn put(&self, workspace: &WorkspaceId, blobs: &[Blob]) -> Result<Stubs> {
        let begun = self.source.now();
        let mut objects = Vec::new();
        let mut stubs = Vec::with_capacity(blobs.len());
        for blob in blobs {
            if blob.bytes.len() <= self.above {
                stubs.push(blob.clone());
                continue;
            }
            let mut put = [0; 16];
            self.puts.fill(&mut put);
            objects.push((format!("{}/{}", folder(workspace), name(&blob.id, &put)), blob.bytes.clone()));
            stubs.push(Blob { id: blob.id, bytes: Stub::write(put, blob.bytes.len()) });
        }
        self.bucket.put_all(objects).await?;
        Ok(Stubs { blobs: stubs, took_ms: self.source.now().since_ms(begun) })
    }

    /// Deletes objects that nothing refers to. Returns how many.
    pub async fn sweep(&self, db: &Db, workspace: &WorkspaceId, before: Timestamp) -> Result<u64> {
        // Listed before the table is read: what comes in between is not in the list.
        let listed = self.bucket.list(&folder(workspace), None).await?;
        let before = before.0.min(self.source.now().0 - self.orphan_ms);
        let mut idle: BTreeSet<String> =
            listed.into_iter().filter(|object| object.modified_ms < before).map(|object| object.name).collect();
        if idle.is_empty() {
            return Ok(0);
        }
        const PAGE: i64 = 10_000;
        let (own, mut after) = (escape(workspace.as_str()), Vec::new());
        let sql = "SELECT id, body FROM {s}.blobs WHERE workspace = $1 AND id > $2
                   AND octet_length(body) = 26 AND get_byte(body, 0) = 1 ORDER BY id LIMIT $3";
        loop {
            let params: [super::db::Param<'_>; 3] = [(&own, Type::TEXT), (&after, Type::BYTEA), (&PAGE, Type::INT8)];
            let rows = db.ask("looking for payloads that nothing needs", sql, &params).await?;
            for row in &rows {
                let (id, body) = (super::rows::blob_id(row, 0)?, column::<&[u8]>(row, 1)?);
                if let Some(stub) = Stub::read(body) {
                    idle.remove(&name(&id, &stub.put));
                }
                after = id.0.to_vec();
            }
            if (rows.len() as i64) < PAGE {
                break;
            }
        }
        let keys: Vec<String> = idle.iter().map(|name| format!("{}/{name}", folder(workspace))).collect();
        self.bucket.delete_all(&keys).await?;
        Ok(keys.len() as u64)
    }
}

/// Puts the blobs themselves in the place of stubs; none where the bucket has lost one.
pub(super) async fn resolve(
    outside: Option<&Outside>,
    workspace: &WorkspaceId,
    ids: &[BlobId],
    found: &mut [Option<Vec<u8>>],
) -> Result<()> {
    let mut wanted = Vec::new();
    for (at, (id, bytes)) in ids.iter().zip(found.iter()).enumerate() {
        let Some(bytes) = bytes.as_deref().filter(|bytes| is_stub(bytes)) else { continue };
        let stub = Stub::read(bytes).ok_or_else(|| {
            Error::corrupt(format!("blob {}", hex(&id.0)), "where its payload lies is written in an unknown way")
        })?;
        wanted.push((at, format!("{}/{}", folder(workspace), name(id, &stub.put))));
    }
    if wanted.is_empty() {
        return Ok(());
    }
    let outside = outside.ok_or_else(|| {
        Error::invalid(
            "the way this store was opened",
            "its payloads lie in an object store: open it with blobs = \"s3://BUCKET/PREFIX\"",
        )
    })?;
    let (places, keys): (Vec<usize>, Vec<String>) = wanted.into_iter().unzip();
    for (at, bytes) in places.into_iter().zip(outside.bucket.get_all(&keys).await?) {
        found[at] = bytes;
    }
    Ok(())
}

/// Which of these blobs the table has; they are kept from collection as if they were put again.
pub(super) async fn touch(db: &Db, workspace: &WorkspaceId, blobs: &[Blob]) -> Result<BTreeSet<BlobId>> {
    let (workspace, now) = (escape(workspace.as_str()), db.now());
    let ids: Vec<&[u8]> = blobs.iter().map(|blob| blob.id.0.as_slice()).collect();
    let sql = "UPDATE {s}.blobs SET touched = greatest(touched, {s}.now_ms($3)) WHERE workspace = $1 AND id = ANY ($2)
               RETURNING id";
    let rows = db
        .ask("keeping blobs", sql, &[(&workspace, Type::TEXT), (&ids, Type::BYTEA_ARRAY), (&now, Type::INT8)])
        .await?;
    rows.iter().map(|row| super::rows::blob_id(row, 0)).collect()
}
