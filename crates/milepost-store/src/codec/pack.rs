//! Bytes to stored bytes and back: base64 as what it stands for, zstd when it pays, then encryption when there is a key.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::sync::OnceLock;

use zstd::bulk::{Compressor, Decompressor};
use zstd::dict::{DecoderDictionary, EncoderDictionary};
use zstd::zstd_safe::{CParameter, DParameter, FrameFormat};

use super::cipher::SessionCipher;
use super::{base64, varint};
use crate::error::{Error, Result};
use milepost_model::Source;

/// A dictionary of what agents' messages and states are made of; see the folder's README.
const DICTIONARY: &[u8] = include_bytes!("dictionary/v1.zdict");
/// The dictionary helps up to here; beyond, a payload is its own dictionary.
const DICTIONARY_MAX: usize = 16 << 10;
/// Shorter payloads are kept as they are: a frame's own bytes eat the gain.
const COMPRESS_MIN: usize = 32;
/// Small payloads are compressed while someone waits: with the dictionary, a higher level takes three times as long for
/// a few bytes less.
const LEVEL_SMALL: i32 = 1;
const LEVEL: i32 = 3;
/// A buffer larger than this is not kept.
const BUFFER_MAX: usize = 1 << 20;

/// The stored bytes are a zstd frame behind the plain length.
pub(super) const ZSTD: u8 = 1 << 3;
/// The frame needs the built-in dictionary, version 1.
pub(super) const DICT: u8 = 1 << 4;
/// Encrypted with AES-256-GCM-SIV.
pub(super) const GCM_SIV: u8 = 1 << 5;
/// Encrypted with XChaCha20-Poly1305.
pub(super) const XCHACHA: u8 = 1 << 6;
/// A run of base64 is there as its bytes.
pub(super) const BASE64: u8 = 1 << 7;
/// All flags this version knows.
pub(super) const KNOWN: u8 = ZSTD | DICT | GCM_SIV | XCHACHA | BASE64;

struct Compressors {
    plain: Compressor<'static>,
    with_dictionary: Compressor<'static>,
    /// Where frames are made.
    buffer: Vec<u8>,
}

struct Decompressors {
    plain: Decompressor<'static>,
    with_dictionary: Decompressor<'static>,
}

fn frame_parameters(compressor: &mut Compressor<'_>) -> io::Result<()> {
    compressor.set_parameter(CParameter::Format(FrameFormat::Magicless))?;
    compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
    compressor.set_parameter(CParameter::ChecksumFlag(false))?;
    compressor.set_parameter(CParameter::DictIdFlag(false))
}

impl Compressors {
    fn new() -> io::Result<Self> {
        static PREPARED: OnceLock<EncoderDictionary<'static>> = OnceLock::new();
        let prepared = PREPARED.get_or_init(|| EncoderDictionary::new(DICTIONARY, LEVEL_SMALL));
        let mut plain = Compressor::new(LEVEL)?;
        let mut with_dictionary = Compressor::with_prepared_dictionary(prepared)?;
        frame_parameters(&mut plain)?;
        frame_parameters(&mut with_dictionary)?;
        Ok(Self { plain, with_dictionary, buffer: Vec::new() })
    }
}

impl Decompressors {
    fn new() -> io::Result<Self> {
        static PREPARED: OnceLock<DecoderDictionary<'static>> = OnceLock::new();
        let prepared = PREPARED.get_or_init(|| DecoderDictionary::new(DICTIONARY));
        let mut plain = Decompressor::new()?;
        let mut with_dictionary = Decompressor::with_prepared_dictionary(prepared)?;
        plain.set_parameter(DParameter::Format(FrameFormat::Magicless))?;
        with_dictionary.set_parameter(DParameter::Format(FrameFormat::Magicless))?;
        Ok(Self { plain, with_dictionary })
    }
}

thread_local! {
    static COMPRESSORS: RefCell<Option<Compressors>> = const { RefCell::new(None) };
    static DECOMPRESSORS: RefCell<Option<Decompressors>> = const { RefCell::new(None) };
}

/// Appends the plain length and the frame, and returns their flags; nothing when it would not pay.
fn compress(plain: &[u8], out: &mut Vec<u8>) -> Option<u8> {
    if plain.len() < COMPRESS_MIN {
        return None;
    }
    COMPRESSORS.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Compressors::new().ok();
        }
        let compressors = slot.as_mut()?;
        let small = plain.len() <= DICTIONARY_MAX;
        let compressor = if small { &mut compressors.with_dictionary } else { &mut compressors.plain };
        // A frame that does not fit would not pay.
        let most = plain.len().checked_sub(5 + plain.len() / 32)?;
        let buffer = &mut compressors.buffer;
        buffer.resize(most, 0);
        let frame = compressor.compress_to_buffer(plain, buffer.as_mut_slice()).ok().map(|len| &buffer[..len]);
        if let Some(frame) = frame {
            varint::push(out, plain.len() as u64);
            out.extend_from_slice(frame);
        }
        let flags = frame.map(|_| if small { ZSTD | DICT } else { ZSTD });
        if buffer.capacity() > BUFFER_MAX {
            *buffer = Vec::new();
        }
        flags
    })
}

/// `room` bytes are left free behind what the frame holds.
fn decompress(frame: &[u8], flags: u8, plain_len: usize, room: usize) -> Result<Vec<u8>> {
    DECOMPRESSORS.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Decompressors::new().ok();
        }
        let broken = |why: String| Error::corrupt("a compressed payload", why);
        let decompressors = slot.as_mut().ok_or_else(|| broken("zstd could not be set up".into()))?;
        let decompressor =
            if flags & DICT != 0 { &mut decompressors.with_dictionary } else { &mut decompressors.plain };
        let mut plain = Vec::with_capacity(plain_len + room);
        decompressor.decompress_to_buffer(frame, &mut plain).map_err(|error| broken(error.to_string()))?;
        if plain.len() != plain_len {
            return Err(broken(format!("it has {} bytes instead of {plain_len}", plain.len())));
        }
        Ok(plain)
    })
}

/// What protects a payload and binds it to its place.
pub(super) struct Seal<'a> {
    pub cipher: Option<&'a SessionCipher>,
    pub associated: &'a [u8],
}

/// Whether to try zstd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Squeeze {
    /// When it pays.
    Yes,
    /// For a small row that is written over and over.
    No,
}

/// Appends the stored form of `plain` to `out` and returns its flags.
pub(super) fn pack(plain: &[u8], squeeze: Squeeze, seal: &Seal<'_>, source: &Source, out: &mut Vec<u8>) -> Result<u8> {
    let start = out.len();
    let mut flags = 0;
    let folded = if squeeze == Squeeze::Yes { base64::fold(plain) } else { None };
    if folded.is_some() {
        flags |= BASE64;
    }
    let plain = folded.as_deref().unwrap_or(plain);
    let squeezed = if squeeze == Squeeze::Yes { compress(plain, out) } else { None };
    match squeezed {
        Some(how) => flags |= how,
        None => out.extend_from_slice(plain),
    }
    if let Some(cipher) = seal.cipher {
        let sealed = cipher.seal(source, seal.associated, &out[start..])?;
        out.truncate(start);
        out.extend_from_slice(&sealed);
        flags |= cipher.flag();
    }
    Ok(flags)
}

/// The plain form of stored bytes. A caller that will add something to them says for how much there should be `room`.
pub(super) fn unpack<'a>(
    stored: &'a [u8],
    flags: u8,
    seal: &Seal<'_>,
    max_len: u64,
    room: usize,
) -> Result<Cow<'a, [u8]>> {
    let mut opened = Cow::Borrowed(stored);
    if flags & (GCM_SIV | XCHACHA) != 0 {
        let cipher =
            seal.cipher.ok_or_else(|| Error::corrupt("an encrypted payload", "there is no key for it here"))?;
        opened = Cow::Owned(cipher.open(flags, seal.associated, stored)?);
    }
    if flags & ZSTD != 0 {
        opened = Cow::Owned(unsqueeze(&opened, flags, max_len, room)?);
    }
    if flags & BASE64 == 0 {
        return Ok(opened);
    }
    let plain = base64::unfold(&opened, max_len);
    plain.map(Cow::Owned).ok_or_else(|| Error::corrupt("a payload with base64", "it cannot be put together"))
}

fn unsqueeze(mut squeezed: &[u8], flags: u8, max_len: u64, room: usize) -> Result<Vec<u8>> {
    let plain_len =
        varint::pull(&mut squeezed).ok_or_else(|| Error::corrupt("a compressed payload", "its length is missing"))?;
    if plain_len > max_len {
        return Err(Error::corrupt("a compressed payload", format!("it claims {plain_len} bytes")));
    }
    decompress(squeezed, flags, plain_len as usize, room)
}
