//! Authenticated encryption of payloads under a session's key.

use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use milepost_model::Source;
use zeroize::Zeroizing;

use super::pack::{GCM_SIV, XCHACHA};
use crate::error::{Error, Result};

const GCM_SIV_NONCE: usize = 12;
const XCHACHA_NONCE: usize = 24;

/// Whether this processor encrypts AES in hardware.
fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return std::is_x86_feature_detected!("aes") && std::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[allow(unreachable_code)]
    false
}

/// Encrypts with AES-256-GCM-SIV where the processor has AES, else with XChaCha20-Poly1305; decrypts
/// both, so that a store can be moved.
pub(crate) struct SessionCipher {
    gcm_siv: Aes256GcmSiv,
    xchacha: XChaCha20Poly1305,
    flag: u8,
}

impl SessionCipher {
    /// The ciphers of one key. Each algorithm gets a key of its own derived from it.
    pub fn new(key: &[u8; 32]) -> Self {
        let flag = if has_aes() { GCM_SIV } else { XCHACHA };
        Self::with_flag(key, flag)
    }

    pub(super) fn with_flag(key: &[u8; 32], flag: u8) -> Self {
        let gcm_key = Zeroizing::new(blake3::derive_key("milepost 1 payload aes-256-gcm-siv", key));
        let chacha_key = Zeroizing::new(blake3::derive_key("milepost 1 payload xchacha20-poly1305", key));
        Self {
            gcm_siv: Aes256GcmSiv::new((&*gcm_key).into()),
            xchacha: XChaCha20Poly1305::new((&*chacha_key).into()),
            flag,
        }
    }

    /// The flag of the algorithm that seals.
    pub(super) fn flag(&self) -> u8 {
        self.flag
    }

    /// Nonce and ciphertext.
    pub(super) fn seal(&self, source: &Source, associated: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
        let payload = Payload { msg: plain, aad: associated };
        let mut nonce = [0u8; XCHACHA_NONCE];
        let nonce = if self.flag == GCM_SIV { &mut nonce[..GCM_SIV_NONCE] } else { &mut nonce[..] };
        source.fill(nonce);
        let sealed = if let Ok(short) = <[u8; GCM_SIV_NONCE]>::try_from(&*nonce) {
            self.gcm_siv.encrypt(&Nonce::from(short), payload)
        } else {
            let mut long = [0u8; XCHACHA_NONCE];
            long.copy_from_slice(nonce);
            self.xchacha.encrypt(&XNonce::from(long), payload)
        };
        let sealed = sealed.map_err(|_| Error::invalid("payload", "it is too large to encrypt"))?;
        let mut out = Vec::with_capacity(nonce.len() + sealed.len());
        out.extend_from_slice(nonce);
        out.extend_from_slice(&sealed);
        Ok(out)
    }

    /// The plain bytes of what [`seal`](Self::seal) made.
    pub(super) fn open(&self, flags: u8, associated: &[u8], sealed: &[u8]) -> Result<Vec<u8>> {
        let refused = || Error::corrupt("an encrypted payload", "it was changed, moved, or sealed with another key");
        let opened = if flags & GCM_SIV != 0 {
            let (nonce, rest) = sealed.split_first_chunk::<GCM_SIV_NONCE>().ok_or_else(refused)?;
            self.gcm_siv.decrypt(&Nonce::from(*nonce), Payload { msg: rest, aad: associated })
        } else {
            let (nonce, rest) = sealed.split_first_chunk::<XCHACHA_NONCE>().ok_or_else(refused)?;
            self.xchacha.decrypt(&XNonce::from(*nonce), Payload { msg: rest, aad: associated })
        };
        opened.map_err(|_| refused())
    }

    /// Seals a key; the algorithm stands before it.
    pub fn wrap(&self, source: &Source, associated: &[u8], key: &[u8]) -> Result<Vec<u8>> {
        let mut out = vec![self.flag];
        out.extend_from_slice(&self.seal(source, associated, key)?);
        Ok(out)
    }

    /// Opens what [`wrap`](Self::wrap) made.
    pub fn unwrap(&self, associated: &[u8], wrapped: &[u8]) -> Result<Vec<u8>> {
        let (&flag, rest) = wrapped.split_first().ok_or_else(|| Error::corrupt("a wrapped key", "it is empty"))?;
        self.open(flag, associated, rest)
    }
}
