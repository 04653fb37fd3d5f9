//! Reading a bundle: once to see that all of it is as it was written, and once more to take it over.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use milepost_model::{Hash, Seq, SessionId, TimelineId};
use milepost_store::ed25519_dalek::VerifyingKey;
use milepost_store::{Claim, Store};

use super::format::{AnyLine, Chain, FORMAT, Footer, Header, MAGIC, VERSION, WINDOW_LOG};
use crate::error::{Error, Result};
use crate::transfer::beside::{Beside, BesideWriter};
use crate::transfer::incoming::Incoming;
use crate::transfer::outgoing::{Piece, entry_name};
use crate::transfer::suspects::Suspects;
use crate::transfer::{FREE_BYTES, ImportLimits, ImportOptions, Imported, OnProgress, Progress};

/// What a bundle holds, seen before it is imported.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The session.
    pub session: SessionId,
    /// The workspace it was in.
    pub workspace: String,
    /// Its entries.
    pub entries: u64,
    /// Its blobs.
    pub blobs: u64,
    /// The hash of all of it.
    pub hash: Hash,
    /// Who signed it; none when nobody did.
    pub signed_by: Option<VerifyingKey>,
}

/// What a line of a bundle is.
enum Next {
    Piece(Piece),
    Beside(Beside),
    End(Footer),
}

/// Counts what is read.
struct Counted<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(into)?;
        self.count += read as u64;
        Ok(read)
    }
}

type Unpacked<R> = BufReader<zstd::Decoder<'static, BufReader<Counted<R>>>>;

/// Reads pieces, and refuses whatever does not follow on what came before.
struct BundleReader<'a, R: Read> {
    input: Unpacked<R>,
    limits: &'a ImportLimits,
    from: String,
    chain: Chain,
    line: Vec<u8>,
    bytes: u64,
    header: Option<Header>,
    /// The timeline that is being read, the entry that comes next, and the one after its last.
    timeline: Option<(TimelineId, Seq, Seq)>,
    timelines: u64,
    entries: u64,
    blobs: u64,
    last: String,
}

impl<'a, R: Read + Seek> BundleReader<'a, R> {
    /// Reads from the beginning, up to and with the header.
    fn open(mut reader: R, options: &'a ImportOptions) -> Result<Self> {
        let from = options.name();
        let io = |error: std::io::Error| Error::import(options.name(), format!("it cannot be read: {error}"));
        let mut magic = [0u8; 4];
        reader.seek(SeekFrom::Start(0)).map_err(io)?;
        if reader.read_exact(&mut magic).is_err() || magic != MAGIC {
            return Err(Error::import(from, "it is no bundle: it does not begin like one"));
        }
        reader.seek(SeekFrom::Start(0)).map_err(io)?;
        let counted = BufReader::new(Counted { inner: reader, count: 0 });
        let mut unpacked = zstd::Decoder::with_buffer(counted).map_err(io)?.single_frame();
        unpacked.window_log_max(WINDOW_LOG).map_err(io)?;
        let mut bundle = Self {
            input: BufReader::new(unpacked),
            limits: &options.limits,
            from,
            chain: Chain::new(),
            line: Vec::new(),
            bytes: 0,
            header: None,
            timeline: None,
            timelines: 0,
            entries: 0,
            blobs: 0,
            last: "the beginning".to_owned(),
        };
        bundle.header()?;
        Ok(bundle)
    }

    fn refuse(&self, why: impl std::fmt::Display) -> Error {
        Error::import(&*self.from, why.to_string())
    }

    /// Names what is read now by what was read before.
    fn wrong(&self, what: impl std::fmt::Display, why: impl std::fmt::Display) -> Error {
        self.refuse(format!("{what} (after {}): {why}", self.last))
    }

    /// How much of it was read.
    fn so_far(&self) -> String {
        let of = self.header.as_ref().map(|header| format!(" of {}", header.entries)).unwrap_or_default();
        format!("{}{of} entries are whole", self.entries)
    }

    /// Packed lines come in blocks: of the block that was cut, nothing can be read.
    fn cut_off(&self) -> Error {
        self.refuse(format!(
            "the file is cut off, it ends after {}: {}; copy it again, or export the session again",
            self.last,
            self.so_far()
        ))
    }

    fn header(&mut self) -> Result<()> {
        if !self.read_line()? {
            return Err(self.refuse("it is empty"));
        }
        // Of a version that is unknown, no more than that can be told.
        let is_ours = std::str::from_utf8(&self.line).is_ok_and(|line| line.starts_with("{\"milepost\":{"));
        let header = serde_json::from_slice::<AnyLine<'_>>(&self.line).ok().and_then(|line| line.milepost);
        let header = match header {
            Some(header) if header.format == FORMAT => header,
            _ if is_ours => return Err(self.refuse("its first line is damaged, or it was made by a newer Milepost")),
            _ => return Err(self.refuse("it is no bundle: its first line is something else")),
        };
        if header.version > VERSION {
            return Err(self.refuse(format!(
                "its version is {}, this program reads up to {VERSION}: use a newer Milepost",
                header.version
            )));
        }
        if !self.chain.accepts(&self.line) {
            return Err(self.refuse("its header was changed"));
        }
        self.header = Some(header);
        Ok(())
    }

    /// Reads one line; false at the end.
    fn read_line(&mut self) -> Result<bool> {
        self.line.clear();
        loop {
            let found = match self.input.fill_buf() {
                Ok(found) => found,
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(self.cut_off()),
                Err(error) => {
                    let why = format!("{}, then it cannot be unpacked: {error}", self.so_far());
                    return Err(Error::import(&*self.from, why));
                }
            };
            if found.is_empty() {
                return match self.line.is_empty() {
                    true => Ok(false),
                    false => Err(self.cut_off()),
                };
            }
            let end = found.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(found.len(), |end| end + 1);
            self.line.extend_from_slice(&found[..end.unwrap_or(found.len())]);
            self.input.consume(used);
            self.bytes += used as u64;
            self.check_sizes()?;
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    fn check_sizes(&self) -> Result<()> {
        let limits = self.limits;
        let over = |what: &str, size: u64, limit: &str, max: u64| {
            self.refuse(format!("{what} {size}, the limit {limit} is {max}"))
        };
        if self.line.len() as u64 > limits.max_line_bytes {
            return Err(over(
                "a line has more bytes than",
                limits.max_line_bytes,
                "max_line_bytes",
                limits.max_line_bytes,
            ));
        }
        if self.bytes > limits.max_bundle_bytes {
            return Err(over("its unpacked bytes reach", self.bytes, "max_bundle_bytes", limits.max_bundle_bytes));
        }
        let packed = self.input.get_ref().get_ref().get_ref().count;
        if self.bytes > FREE_BYTES && self.bytes / packed.max(1) > limits.max_ratio {
            let ratio = self.bytes / packed.max(1);
            return Err(over("unpacked to packed bytes are as", ratio, "max_ratio", limits.max_ratio));
        }
        Ok(())
    }

    /// The next piece, or how it ends.
    fn next(&mut self) -> Result<Next> {
        if !self.read_line()? {
            return Err(self.cut_off());
        }
        let before = self.chain.hash();
        let line = std::mem::take(&mut self.line);
        let is_whole = self.chain.accepts(&line);
        let outcome = self.parse(&line, is_whole, before);
        self.line = line;
        outcome
    }

    fn parse(&mut self, line: &[u8], is_whole: bool, before: Hash) -> Result<Next> {
        let parsed = serde_json::from_slice::<AnyLine<'_>>(line);
        let changed =
            "it is not what was exported here: it was changed, or lines before it are missing, swapped or doubled";
        let parsed = match (parsed, is_whole) {
            (Ok(parsed), true) => parsed,
            (Ok(parsed), false) => return Err(self.wrong(self.name(&parsed), changed)),
            (Err(_), false) => return Err(self.wrong(format!("entry {}", self.entries), changed)),
            (Err(error), true) => return Err(self.wrong("a line", error)),
        };
        let name = self.name(&parsed);
        let piece = match parsed {
            AnyLine {
                line: Some(line),
                milepost: None,
                blob: None,
                entry: None,
                artifact: None,
                log: None,
                end: None,
                ..
            } => {
                self.check_line_end()?;
                let line = line.piece();
                let begins = Seq(line.parent.map_or(0, |at| at.seq.0.saturating_add(1)));
                self.timeline = Some((line.id, begins, line.end));
                self.timelines += 1;
                Piece::Line(line)
            }
            AnyLine {
                blob: Some(blob),
                milepost: None,
                line: None,
                entry: None,
                artifact: None,
                log: None,
                end: None,
                ..
            } => {
                self.blobs += 1;
                blob.piece().map_err(|why| self.wrong(&name, why))?
            }
            AnyLine {
                entry: Some(entry),
                milepost: None,
                line: None,
                blob: None,
                artifact: None,
                log: None,
                end: None,
                ..
            } => {
                let Some((timeline, next, end)) = self.timeline else {
                    return Err(self.wrong(name, "no timeline was begun"));
                };
                if entry.seq != next || next >= end {
                    return Err(self.wrong(name, format!("entry {next} comes next, and {end} is the end")));
                }
                self.timeline = Some((timeline, next.next(), end));
                self.entries += 1;
                Piece::Entry(Box::new(entry.piece(timeline).map_err(|why| self.wrong(&name, why))?))
            }
            AnyLine {
                artifact: Some(artifact),
                milepost: None,
                line: None,
                blob: None,
                entry: None,
                log: None,
                end: None,
                ..
            } => {
                self.check_line_end()?;
                let beside = artifact.piece().map_err(|why| self.wrong(&name, why))?;
                self.last = name;
                return Ok(Next::Beside(beside));
            }
            AnyLine {
                log: Some(log),
                milepost: None,
                line: None,
                blob: None,
                entry: None,
                artifact: None,
                end: None,
                ..
            } => {
                self.check_line_end()?;
                self.last = name;
                return Ok(Next::Beside(log.piece()));
            }
            AnyLine {
                end: Some(footer),
                milepost: None,
                line: None,
                blob: None,
                entry: None,
                artifact: None,
                log: None,
                ..
            } => {
                self.check_line_end()?;
                self.check_end(&footer, before)?;
                return Ok(Next::End(footer));
            }
            _ => return Err(self.wrong("a line", "it is none that a bundle has")),
        };
        self.last = name;
        Ok(Next::Piece(piece))
    }

    fn name(&self, line: &AnyLine<'_>) -> String {
        match line {
            AnyLine { entry: Some(entry), .. } => entry_name(entry.seq, entry.kind),
            AnyLine { line: Some(_), .. } => format!("timeline {}", self.timelines + 1),
            AnyLine { blob: Some(_), .. } => format!("blob {}", self.blobs + 1),
            AnyLine { artifact: Some(_), .. } => "an artifact".to_owned(),
            AnyLine { log: Some(_), .. } => "lines of the log".to_owned(),
            AnyLine { end: Some(_), .. } => "the end".to_owned(),
            _ => "a line".to_owned(),
        }
    }

    fn check_line_end(&self) -> Result<()> {
        match self.timeline {
            Some((id, next, end)) if next < end => {
                Err(self.wrong(format!("timeline {id}"), format!("it has entries up to {end}, {next} is missing")))
            }
            _ => Ok(()),
        }
    }

    fn check_end(&mut self, footer: &Footer, before: Hash) -> Result<()> {
        let header = self.header.as_ref().ok_or_else(|| self.refuse("it has no header"))?;
        let said = [(footer.lines, header.lines, self.timelines), (footer.entries, header.entries, self.entries)];
        let is_same = said.iter().all(|(end, begin, found)| end == begin && end == found);
        if !is_same || footer.blobs != self.blobs || footer.hash != before {
            return Err(self.wrong("the end", "it does not fit what came before it"));
        }
        if self.read_line()? {
            return Err(self.wrong("a line after the end", "nothing may follow there"));
        }
        let rest = self.input.get_mut().get_mut().fill_buf().map(|rest| !rest.is_empty());
        match rest {
            Ok(false) => Ok(()),
            _ => Err(self.wrong("bytes after the end", "nothing may follow there")),
        }
    }
}

/// Reads a whole bundle and sees that it is as it was written.
pub fn check_bundle<R: Read + Seek>(reader: R, options: &ImportOptions) -> Result<Checked> {
    check(reader, options, None)
}

fn check<R: Read + Seek>(
    reader: R,
    options: &ImportOptions,
    mut suspects: Option<&mut Suspects<'_>>,
) -> Result<Checked> {
    let mut bundle = BundleReader::open(reader, options)?;
    let footer = loop {
        match (bundle.next()?, &mut suspects) {
            (Next::End(footer), _) => break footer,
            (Next::Piece(Piece::Entry(entry)), Some(suspects)) => suspects.look(*entry),
            (Next::Piece(Piece::Blob(_, content)), Some(suspects)) => suspects.look_at_blob(&content),
            (Next::Beside(piece), Some(suspects)) => suspects.look_beside(&piece),
            _ => {}
        }
    };
    let signed_by = match &footer.signed {
        None => None,
        Some(signed) => {
            let signer = signed.signer(&footer.hash);
            Some(
                signer
                    .ok_or_else(|| bundle.refuse("its signature does not fit: it was changed after it was signed"))?,
            )
        }
    };
    if let Some(wanted) = options.signed_by {
        match signed_by {
            Some(found) if found == wanted => {}
            Some(found) => {
                let key = Hash(found.to_bytes());
                return Err(bundle.refuse(format!("it was signed by {key}, which is not the key that is trusted")));
            }
            None => return Err(bundle.refuse("it is not signed, and a signature is asked for")),
        }
    }
    let header = bundle.header.take().ok_or_else(|| bundle.refuse("it has no header"))?;
    Ok(Checked {
        session: header.session,
        workspace: header.workspace,
        entries: footer.entries,
        blobs: footer.blobs,
        hash: footer.hash,
        signed_by,
    })
}

/// Imports a bundle. All of it is checked before anything is written; when something is refused after that, what was
/// written is removed again.
pub async fn import_bundle<R: Read + Seek + Send>(
    store: &Store,
    mut reader: R,
    options: &ImportOptions,
    claim: &Claim,
    progress: OnProgress<'_>,
) -> Result<Imported> {
    let mut suspects = options.engine.as_ref().map(Suspects::new);
    let checked = check(&mut reader, options, suspects.as_mut())?;
    let notes = suspects.and_then(Suspects::note).into_iter().collect();
    let mut bundle = BundleReader::open(&mut reader, options)?;
    let mut incoming = Incoming::new(store, checked.session, options.ids, claim);
    let mut beside = None;
    let outcome = pour(store, &mut bundle, &checked, &mut incoming, &mut beside, progress).await;
    match outcome {
        Ok(()) => Ok(Imported { notes, ..Box::pin(incoming.finish()).await? }),
        Err(error) => {
            if let Some(beside) = beside {
                beside.discard().await?;
            }
            incoming.discard().await?;
            Err(error)
        }
    }
}

async fn pour<R: Read + Seek + Send>(
    store: &Store,
    bundle: &mut BundleReader<'_, R>,
    checked: &Checked,
    incoming: &mut Incoming<'_>,
    beside: &mut Option<BesideWriter>,
    progress: OnProgress<'_>,
) -> Result<()> {
    loop {
        match bundle.next()? {
            Next::Beside(piece) => {
                if beside.is_none() {
                    *beside = Some(BesideWriter::new(store, checked.session, incoming.session()).await?);
                }
                let name = piece.what();
                if let Some(beside) = beside {
                    beside.take(piece).await.map_err(|error| named(&bundle.from, &name, error))?;
                }
            }
            Next::Piece(piece) => {
                let name = piece.what();
                let outcome = incoming.take(piece).await;
                outcome.map_err(|error| named(&bundle.from, &name, error))?;
                progress(Progress { entries: bundle.entries, entries_total: checked.entries });
            }
            // The file is not the one that was checked.
            Next::End(footer) if footer.hash != checked.hash => {
                return Err(bundle.refuse("it was changed while it was read"));
            }
            Next::End(_) => return Ok(()),
        }
    }
}

/// What the store refuses about a piece becomes what is wrong with the bundle.
fn named(from: &str, piece: &str, error: Error) -> Error {
    use milepost_store::Error as StoreError;
    match error {
        Error::Store(error @ (StoreError::Invalid { .. } | StoreError::TooLarge { .. })) => {
            Error::import(from, format!("{piece}: {error}"))
        }
        Error::Import { from: what, why } => Error::import(from, format!("{piece}: {what}: {why}")),
        other => other,
    }
}
