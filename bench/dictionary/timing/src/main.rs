//! `dictionary-timing PAYLOADS [DICTIONARY]…`: microseconds per payload, with prepared dictionaries and reused contexts.
//!
//! PAYLOADS holds payloads, each after its length as four bytes (little endian). `-` in place of a dictionary: none.

use std::time::Instant;
use zstd_safe::{CCtx, CDict, CParameter, DCtx, DDict, DParameter, FrameFormat};

fn main() {
    let mut args = std::env::args().skip(1);
    let file = std::fs::read(args.next().expect("PAYLOADS")).expect("read");
    let mut payloads = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let n = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        payloads.push(&file[at + 4..at + 4 + n]);
        at += 4 + n;
    }
    let plain: usize = payloads.iter().map(|p| p.len()).sum();
    println!("{} payloads, mean {} bytes", payloads.len(), plain / payloads.len());
    for name in args {
        let bytes = if name == "-" { Vec::new() } else { std::fs::read(&name).expect("dictionary") };
        for level in [1, 3, 4, 5, 6, 9] {
            let start = Instant::now();
            let cdict = (!bytes.is_empty()).then(|| CDict::create(&bytes, level));
            let built = start.elapsed();
            let ddict = (!bytes.is_empty()).then(|| DDict::create(&bytes));
            let mut c = CCtx::create();
            for p in [
                CParameter::CompressionLevel(level),
                CParameter::Format(FrameFormat::Magicless),
                CParameter::ContentSizeFlag(false),
                CParameter::ChecksumFlag(false),
                CParameter::DictIdFlag(false),
            ] {
                c.set_parameter(p).expect("parameter");
            }
            let mut d = DCtx::create();
            d.set_parameter(DParameter::Format(FrameFormat::Magicless)).expect("parameter");
            if let (Some(cd), Some(dd)) = (&cdict, &ddict) {
                c.ref_cdict(cd).expect("cdict");
                d.ref_ddict(dd).expect("ddict");
            }
            let mut out = vec![0u8; 1 << 20];
            let mut back = vec![0u8; 1 << 20];
            let mut packed = Vec::new();
            let mut best = (f64::MAX, f64::MAX);
            for _ in 0..15 {
                packed.clear();
                let start = Instant::now();
                for p in &payloads {
                    let n = c.compress2(&mut out[..], p).expect("compress");
                    packed.push(out[..n].to_vec());
                }
                best.0 = best.0.min(start.elapsed().as_secs_f64());
                let start = Instant::now();
                for q in &packed {
                    d.decompress(&mut back[..], q).expect("decompress");
                }
                best.1 = best.1.min(start.elapsed().as_secs_f64());
            }
            for (p, q) in payloads.iter().zip(&packed) {
                let n = d.decompress(&mut back[..], q).expect("decompress");
                assert_eq!(&back[..n], *p);
            }
            let stored: usize = payloads.iter().zip(&packed).map(|(p, q)| p.len().min(q.len())).sum();
            let per = 1e6 / payloads.len() as f64;
            println!(
                "{name:>28} L{level}: ratio {:.3}  compress {:5.2} us  decompress {:5.2} us  (dictionary prepared in {:?})",
                plain as f64 / stored as f64, best.0 * per, best.1 * per, built
            );
        }
    }
}
