//! Server-sent events: whatever way the bytes are cut, the same events come out.

use milepost_models::sse::{Event, Parser, TooLarge};
use proptest::prelude::*;

fn parse(pieces: &[&[u8]]) -> (Vec<Event>, Option<Event>) {
    let mut parser = Parser::new(1 << 20);
    let mut out = Vec::new();
    pieces.iter().for_each(|piece| parser.push(piece, &mut out).unwrap());
    (out, parser.finish())
}

fn data(events: &[Event]) -> Vec<(&str, &str)> {
    events.iter().map(|event| (event.kind.as_str(), event.data.as_str())).collect()
}

const AWKWARD: &[u8] = "\u{feff}event: a\r\ndata: one\r\ndata:two\r\n\r\n: comment\rdata: cr\r\rdata\n\nid: 7\nretry: 10\nevent:only\n\ndata: ü🌦\nunknown: x\nnocolon\n\ndata: \u{feff}kept\n\ndata: half".as_bytes();

#[test]
fn lines_end_in_three_ways_and_what_means_nothing_is_passed_over() {
    let (events, half) = parse(&[AWKWARD]);
    assert_eq!(data(&events), [("a", "one\ntwo"), ("", "cr"), ("", ""), ("", "ü🌦"), ("", "\u{feff}kept")]);
    assert_eq!(half, Some(Event { kind: String::new(), data: "half".into() }));
}

#[test]
fn every_cut_gives_the_same_events() {
    let whole = parse(&[AWKWARD]);
    for at in 0..=AWKWARD.len() {
        assert_eq!(parse(&[&AWKWARD[..at], &AWKWARD[at..]]), whole, "cut at {at}");
    }
    let bytes: Vec<&[u8]> = AWKWARD.chunks(1).collect();
    assert_eq!(parse(&bytes), whole);
}

#[test]
fn an_event_that_never_ends_is_refused_at_its_limit() {
    let mut parser = Parser::new(100);
    let mut out = Vec::new();
    assert_eq!(parser.push(&[b'x'; 101], &mut out), Err(TooLarge));
    let mut parser = Parser::new(100);
    let line = [b"data: ".as_slice(), &[b'x'; 60], b"\n"].concat();
    assert_eq!(parser.push(&line, &mut out), Ok(()));
    assert_eq!(parser.push(&line, &mut out), Err(TooLarge));
    let mut parser = Parser::new(100);
    for _ in 0..1000 {
        parser.push(b"data: short\n\n", &mut out).unwrap();
    }
    assert_eq!(out.len(), 1000);
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_give_the_same_events(
        bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b':'), Just(b'd'), Just(b' '), any::<u8>()], 0..200),
        lines in any::<bool>(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut bytes = bytes;
        if lines {
            let with: Vec<u8> = bytes.split(|byte| *byte == b'd').collect::<Vec<_>>().join(&b"\ndata:"[..]);
            bytes = with;
        }
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for to in at {
            pieces.push(&bytes[from..to]);
            from = to;
        }
        pieces.push(&bytes[from..]);
        prop_assert_eq!(parse(&pieces), parse(&[&bytes]));
    }
}
