//! Writing a bundle.

use std::io::Write;

use milepost_model::SessionId;
use milepost_store::Store;
use milepost_store::ed25519_dalek::SigningKey;

use super::format::{
    Chain, FORMAT, Footer, Header, Signed, VERSION, WITHOUT_BESIDE, beside_text, footer_text, header_text, piece_text,
};
use crate::error::{Error, Result};
use crate::transfer::beside::BesideReader;
use crate::transfer::outgoing::{Outgoing, Piece};
use crate::transfer::{OnProgress, Progress};

/// How hard zstd tries: well packed, and still faster than most disks.
const LEVEL: i32 = 6;
/// The window: within what every reader allows.
const WINDOW_LOG: u32 = 22;

/// How a bundle is made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BundleOptions {
    /// Signs the end, so that an import can ask for it.
    pub sign: Option<SigningKey>,
}

/// What a bundle holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    /// Timelines.
    pub lines: u64,
    /// Entries.
    pub entries: u64,
    /// Blobs.
    pub blobs: u64,
    /// Bytes before they were packed.
    pub bytes: u64,
}

/// Writes one session with everything it needs: its old timelines, what it shares with the session it was branched from,
/// its blobs, its artifacts and its log. Holds no more of it than a page of entries.
pub async fn export_bundle<W: Write + Send>(
    store: &Store,
    session: SessionId,
    writer: W,
    options: &BundleOptions,
    progress: OnProgress<'_>,
) -> Result<Exported> {
    let what = format!("writing the bundle of session {session}");
    let io = |error: std::io::Error| Error::file(&*what, error);
    let bad = |place: String, why: String| Error::refused(format!("exporting {place}"), why, "leave that entry out");
    let mut packed = zstd::Encoder::new(writer, LEVEL).map_err(io)?;
    packed.window_log(WINDOW_LOG).map_err(io)?;
    let mut out = Outgoing::new(store, session).await?;
    let (lines, entries_total) = out.counts();
    let mut beside = BesideReader::new(store, session).await?;
    let header = Header {
        format: FORMAT.to_owned(),
        version: if beside.is_empty().await? { WITHOUT_BESIDE } else { VERSION },
        session,
        workspace: store.workspace().to_string(),
        created: out.session.created,
        active: out.session.active,
        lines,
        entries: entries_total,
    };
    let mut chain = Chain::new();
    let mut done = Exported { lines, ..Exported::default() };
    let mut write = |said: String, chain: &mut Chain, bytes: &mut u64| -> Result<()> {
        let line = chain.close(said);
        *bytes += line.len() as u64;
        packed.write_all(line.as_bytes()).map_err(io)
    };
    let said = header_text(&header).map_err(|why| bad("the header".into(), why))?;
    write(said, &mut chain, &mut done.bytes)?;
    while let Some(piece) = out.next().await? {
        let said = piece_text(&piece).map_err(|why| bad(piece.what(), why))?;
        write(said, &mut chain, &mut done.bytes)?;
        match piece {
            Piece::Line(_) => {}
            Piece::Blob(..) => done.blobs += 1,
            Piece::Entry(_) => {
                done.entries += 1;
                progress(Progress { entries: done.entries, entries_total });
            }
        }
    }
    while let Some(piece) = beside.next().await? {
        let said = beside_text(&piece).map_err(|why| bad(piece.what(), why))?;
        write(said, &mut chain, &mut done.bytes)?;
    }
    let hash = chain.hash();
    let signed = options.sign.as_ref().map(|key| Signed::new(key, &hash));
    let footer = Footer { lines, entries: done.entries, blobs: done.blobs, hash, signed };
    let said = footer_text(&footer).map_err(|why| bad("the end".into(), why))?;
    write(said, &mut chain, &mut done.bytes)?;
    packed.finish().and_then(|mut writer| writer.flush()).map_err(io)?;
    Ok(done)
}
