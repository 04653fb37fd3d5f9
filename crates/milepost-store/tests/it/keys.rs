//! Keys.
use milepost_model::Position;
use xxhash_rust::xxh3::Xxh3;

/// What an attacker with the file and the source would do: makes an entry's checksum fit what is stored.
pub fn make_sum_fit(db: &rusqlite::Connection, at: Position, key: i64) {
    let sum = db
        .query_row("SELECT version, kind, time, label, channel, text, body, refs, batch, chain, mac FROM entries WHERE id = ?1", [key], |row| {
            let mut hasher = Xxh3::with_seed(at.seq.0);
            let mut field = |bytes: Option<&[u8]>| {
                hasher.update(&bytes.map_or(u64::MAX, |b| b.len() as u64).to_le_bytes());
                hasher.update(bytes.unwrap_or_default());
            };
            let text = |column: usize| row.get::<_, Option<String>>(column);
            let blob = |column: usize| row.get::<_, Option<Vec<u8>>>(column);
            field(Some(&at.timeline.to_bytes()));
            field(Some(&[row.get::<_, u8>(0)?, row.get::<_, u8>(1)?]));
            field(Some(&row.get::<_, i64>(2)?.to_le_bytes()));
            field(text(3)?.as_deref().map(str::as_bytes));
            field(text(4)?.as_deref().map(str::as_bytes));
            field(text(5)?.as_deref().map(str::as_bytes));
            field(blob(6)?.as_deref());
            field(Some(&blob(7)?.unwrap_or_default()));
            field(blob(8)?.as_deref());
            field(blob(9)?.as_deref());
            field(blob(10)?.as_deref());
            Ok(hasher.digest())
        })
        .unwrap();
    db.execute("UPDATE entries SET sum = ?2 WHERE id = ?1", rusqlite::params![key, sum as i64]).unwrap();
}
