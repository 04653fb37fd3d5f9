//! Server-sent events, read as they arrive. However the bytes are cut into pieces, the same events come out.

/// An event of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Event {
    /// Its kind; empty when the stream named none.
    pub kind: String,
    /// Its data; several lines are joined by line feeds.
    pub data: String,
}

/// A line or an event is larger than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

/// Reads a stream. Lines end with LF, CR or CRLF; a byte order mark at the beginning and comments are passed over;
/// bytes that are not UTF-8 become replacement characters. Fields other than `event` and `data` mean nothing to a
/// client that does not reconnect.
#[derive(Debug)]
pub struct Parser {
    max_bytes: usize,
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    after_cr: bool,
    at_start: bool,
}

impl Parser {
    /// A parser that refuses an event of more than `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, line: Vec::new(), event: Event::default(), has_data: false, after_cr: false, at_start: true }
    }

    /// Takes the next bytes and adds the events that end in them to `out`.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<Event>) -> Result<(), TooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if self.line.len() + part.len() + self.event.data.len() > self.max_bytes {
                return Err(TooLarge);
            }
            self.line.extend_from_slice(part);
            bytes = rest;
            if let Some((end, rest)) = rest.split_first() {
                self.after_cr = *end == b'\r';
                bytes = rest;
                out.extend(self.end_line());
            }
        }
        Ok(())
    }

    /// The stream is over. An event that was begun and not ended is given back: whoever knows its format can tell
    /// whether it is whole.
    pub fn finish(mut self) -> Option<Event> {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.end_event()
    }

    fn end_line(&mut self) -> Option<Event> {
        let line = std::mem::take(&mut self.line);
        let line = match std::mem::take(&mut self.at_start) {
            true => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line),
            false => &line,
        };
        if line.is_empty() {
            return self.end_event();
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value));
        match name {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(&value);
            }
            b"event" => self.event.kind = value.into_owned(),
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<Event> {
        let event = std::mem::take(&mut self.event);
        std::mem::take(&mut self.has_data).then_some(event)
    }
}
