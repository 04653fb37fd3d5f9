//! What a person or a program says, line by line, read beside everything else.

use std::io::{BufRead, Read};

use tokio::sync::mpsc::{Receiver, channel};

/// The longest line (1 MiB).
pub const MAX_LINE_BYTES: usize = 1 << 20;
/// So many lines are read ahead.
const AHEAD: usize = 16;

/// What came from the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A line, without its end.
    Line(String),
    /// A line that is none, and why.
    Wrong(String),
    /// There is no more.
    End,
}

/// The lines of the input.
pub struct Lines(Receiver<Heard>);

impl Lines {
    /// One message, and nothing after it.
    pub fn one(message: String) -> Self {
        let (tell, told) = channel(2);
        // There is room for it.
        let _ = tell.try_send(Heard::Line(message));
        Self(told)
    }

    /// The input, read by a thread of its own: it ends with the process.
    pub fn of_input() -> Self {
        let (tell, told) = channel(AHEAD);
        std::thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            loop {
                let heard = line(&mut input);
                let is_over = heard == Heard::End;
                if tell.blocking_send(heard).is_err() || is_over {
                    break;
                }
            }
        });
        Self(told)
    }

    pub async fn next(&mut self) -> Heard {
        self.0.recv().await.unwrap_or(Heard::End)
    }
}

/// The next line; one that is too long is passed over.
fn line(input: &mut impl BufRead) -> Heard {
    let mut bytes = Vec::new();
    match input.take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut bytes) {
        Ok(0) => return Heard::End,
        Ok(_) => {}
        Err(error) => {
            return Heard::Wrong(format!("the input cannot be read: {error}; give it a terminal, a file or a pipe"));
        }
    }
    if bytes.len() > MAX_LINE_BYTES && !bytes.ends_with(b"\n") {
        let mut rest = Vec::new();
        while !rest.ends_with(b"\n") {
            rest.clear();
            match input.take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut rest) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        let why = format!("a line is longer than MAX_LINE_BYTES, {MAX_LINE_BYTES}: say it in several messages");
        return Heard::Wrong(why);
    }
    while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        bytes.pop();
    }
    String::from_utf8(bytes)
        .map_or_else(|_| Heard::Wrong("a line is not UTF-8: save what is said as UTF-8".to_owned()), Heard::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_too_long_or_no_text_are_passed_over() {
        let mut bytes = b"one\r\n\xff\n".to_vec();
        bytes.extend(vec![b'x'; 3 * MAX_LINE_BYTES]);
        bytes.extend(b"\nlast");
        let mut input = bytes.as_slice();
        assert_eq!(line(&mut input), Heard::Line("one".to_owned()));
        assert_eq!(line(&mut input), Heard::Wrong("a line is not UTF-8: save what is said as UTF-8".to_owned()));
        assert!(matches!(line(&mut input), Heard::Wrong(why) if why.contains("MAX_LINE_BYTES")));
        assert_eq!(line(&mut input), Heard::Line("last".to_owned()));
        assert_eq!(line(&mut input), Heard::End);
    }
}
