//! Who holds a session, in words. In an encrypted workspace these words are sealed by the workspace: a backend keeps them
//! and gives them back, and only here it is known what they say.

use base64_simd::STANDARD as BASE64;
use milepost_model::SessionId;

use super::Store;
use crate::backend::{Appended, Batch, Lease, LeaseAction};
use crate::error::{Error, Result};

/// What a sealed text begins with.
const SEALED: &str = "~";
/// Who it is when the words cannot be opened: damaged, or sealed by another key.
const UNREADABLE: &str = "someone whose name cannot be read";

impl Store {
    /// Who may write to a session, and until when; none when there is no such session.
    pub async fn lease(&self, session: SessionId) -> Result<Option<Lease>> {
        let head = self.inner.backend.session(self.workspace(), session).await?;
        Ok(head.map(|head| self.open_lease(session, head.lease)))
    }

    /// Appends a batch; whoever is named by a refusal is named in words.
    pub(super) async fn append_batch(&self, mut batch: Batch) -> Result<Appended> {
        let session = batch.session;
        if let Some((owner, holder)) = batch.holder.take() {
            batch.holder = Some((owner, self.seal_holder(session, holder)?));
        }
        self.inner.backend.append(self.workspace(), batch).await.map_err(|error| self.open_refusal(error))
    }

    /// Changes a lease; whoever is named by a refusal is named in words.
    pub(super) async fn change_lease(&self, session: SessionId, action: LeaseAction) -> Result<Lease> {
        let seal = |holder| self.seal_holder(session, holder);
        let action = match action {
            LeaseAction::Take { owner, holder, ttl_ms } => LeaseAction::Take { owner, holder: seal(holder)?, ttl_ms },
            LeaseAction::TakeOver { owner, holder, ttl_ms } => {
                LeaseAction::TakeOver { owner, holder: seal(holder)?, ttl_ms }
            }
            other => other,
        };
        let lease = self.inner.backend.lease(self.workspace(), session, action).await;
        lease.map(|lease| self.open_lease(session, lease)).map_err(|error| self.open_refusal(error))
    }

    pub(super) fn open_lease(&self, session: SessionId, lease: Lease) -> Lease {
        Lease { holder: self.open_holder(session, lease.holder), ..lease }
    }

    fn seal_holder(&self, session: SessionId, holder: String) -> Result<String> {
        let codec = self.record_codec();
        if codec.cipher.is_none() {
            return Ok(holder);
        }
        let sealed = codec.encode_bytes("holder", &session.to_bytes(), holder.as_bytes())?;
        Ok(format!("{SEALED}{}", BASE64.encode_to_string(sealed)))
    }

    fn open_holder(&self, session: SessionId, holder: String) -> String {
        let codec = self.record_codec();
        // Versions before kept it in clear.
        let Some(sealed) = holder.strip_prefix(SEALED).filter(|_| codec.cipher.is_some()) else { return holder };
        let bytes = BASE64.decode_type::<Vec<u8>>(sealed).ok();
        let plain = bytes.and_then(|bytes| codec.decode_bytes("holder", &session.to_bytes(), &bytes).ok());
        plain.and_then(|plain| String::from_utf8(plain).ok()).unwrap_or_else(|| UNREADABLE.to_owned())
    }

    fn open_refusal(&self, error: Error) -> Error {
        match error {
            Error::Held { session, holder, epoch, until } => {
                Error::Held { session, holder: self.open_holder(session, holder), epoch, until }
            }
            Error::Fenced { session, epoch, current, holder } => {
                Error::Fenced { session, epoch, current, holder: self.open_holder(session, holder) }
            }
            other => other,
        }
    }
}
