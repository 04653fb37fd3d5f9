//! Signed heads: a small statement, kept elsewhere, of how long a session's log was and what its
//! chain hash was. A log that was cut or written anew cannot match it.

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use milepost_model::{Hash, Position, Seq, SessionId, TimelineId, Timestamp};
use serde::{Deserialize, Serialize};

use super::Store;
use crate::backend::Range;
use crate::codec;
use crate::error::{Error, Result};

/// What a session's log was, signed with Ed25519.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHead {
    /// The version of this form.
    pub version: u32,
    /// The session.
    pub session: SessionId,
    /// Its head timeline.
    pub timeline: TimelineId,
    /// How many entries there were.
    pub length: u64,
    /// The chain hash of the last.
    pub chain: Hash,
    /// When it was signed.
    pub time: Timestamp,
    /// Who signed: the public key.
    pub key: Hash,
    /// The signature, in two halves of 32 bytes.
    pub signature: [Hash; 2],
}

const VERSION: u32 = 1;

impl SignedHead {
    fn statement(&self) -> Vec<u8> {
        let mut out = b"milepost 1 head".to_vec();
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&self.session.to_bytes());
        out.extend_from_slice(&self.timeline.to_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
        out.extend_from_slice(&self.chain.0);
        out.extend_from_slice(&self.time.0.to_be_bytes());
        out
    }

    /// Whether the signature is that of `key`.
    pub fn is_signed_by(&self, key: &VerifyingKey) -> bool {
        let mut bytes = [0u8; 64];
        bytes[..32].copy_from_slice(&self.signature[0].0);
        bytes[32..].copy_from_slice(&self.signature[1].0);
        self.key.0 == key.to_bytes() && key.verify_strict(&self.statement(), &Signature::from_bytes(&bytes)).is_ok()
    }
}

impl Store {
    /// States what a session's log is now, and signs it.
    pub async fn sign_head(&self, session: SessionId, key: &SigningKey) -> Result<SignedHead> {
        let (timeline, end) = self.end(session).await?;
        let last = Position { timeline, seq: Seq(end.0.saturating_sub(1)) };
        let mut head = SignedHead {
            version: VERSION,
            session,
            timeline,
            length: end.0,
            chain: self.hash_at(last).await?,
            time: self.source().now(),
            key: Hash(key.verifying_key().to_bytes()),
            signature: [Hash::default(); 2],
        };
        let signature = key.sign(&head.statement()).to_bytes();
        head.signature[0].0.copy_from_slice(&signature[..32]);
        head.signature[1].0.copy_from_slice(&signature[32..]);
        Ok(head)
    }

    /// The chain hash of an entry, computed from everything that is there up to it and not from what the
    /// entries say of themselves.
    async fn computed_hash(&self, at: Position) -> Result<Hash> {
        let mut hash = None;
        for part in self.lineage(at.timeline, at.seq.next()).await? {
            let codec = self.codec(part.session).await?;
            let mut pages = self.pages(Range::all(part.timeline, part.from, part.to));
            while let Some(page) = pages.next().await? {
                for (seq, entry) in &page.entries {
                    let at = Position { timeline: part.timeline, seq: *seq };
                    codec::check(at, entry)?;
                    let (commitment, _) = codec.commitment_of(at, entry, page.payload(entry))?;
                    let before = hash.unwrap_or_else(|| codec::genesis(part.session));
                    hash = Some(codec::chain(&before, at, entry, &commitment));
                }
            }
        }
        hash.ok_or_else(|| Error::not_found("entry", at))
    }

    /// Checks that a session's log still begins with what was signed. Reads all of it.
    pub async fn check_head(&self, head: &SignedHead, key: &VerifyingKey) -> Result<()> {
        if head.version > VERSION {
            return Err(Error::Newer {
                what: "a signed head".into(),
                found: u64::from(head.version),
                supported: u64::from(VERSION),
            });
        }
        if !head.is_signed_by(key) {
            return Err(Error::invalid("the signed head", "its signature is not that of this key"));
        }
        let changed = |why: String| Error::corrupt(format!("session {}", head.session), why);
        let line = self.inner.backend.timeline(self.workspace(), head.timeline).await?;
        let line = line.ok_or_else(|| changed("the timeline that was signed is gone".into()))?;
        if line.length < head.length {
            return Err(changed(format!("{} entries were signed, {} are there", head.length, line.length)));
        }
        let last = Position { timeline: head.timeline, seq: Seq(head.length.saturating_sub(1)) };
        if self.computed_hash(last).await? != head.chain {
            return Err(changed(format!("entry {last} or one before it is not what was signed")));
        }
        Ok(())
    }
}
