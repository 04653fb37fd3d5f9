//! Rules of blobs: kept once, read by name, dropped only when idle and unneeded.

use milepost_model::{EntryKind, Epoch, Seq};

use super::scene::*;
use super::{Outcome, Place};
use crate::backend::*;

/// A blob is kept as it was first put; reading gives each in the order asked, and none where there is none.
pub async fn blobs_are_kept_once_and_read_in_order(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let blobs = vec![blob(2, "two"), blob(1, "one"), blob(3, Vec::new()), blob(2, "two")];
    scene.backend.put_blobs(&scene.workspace, blobs).await?;
    scene.backend.put_blobs(&scene.workspace, vec![blob(1, "not this")]).await?;
    scene.backend.put_blobs(&scene.workspace, Vec::new()).await?;
    for _ in 0..2 {
        let ids = [3, 9, 1, 2, 1].map(|name| BlobId([name; 32])).to_vec();
        let found = scene.backend.get_blobs(&scene.workspace, ids).await?;
        let texts: Vec<Option<&[u8]>> = found.iter().map(Option::as_deref).collect();
        let expected: [Option<&[u8]>; 5] = [Some(b""), None, Some(b"one"), Some(b"two"), Some(b"one")];
        same!(texts, expected, "the blobs in the order asked");
        scene.reopen().await?;
    }
    same!(scene.backend.get_blobs(&scene.workspace, Vec::new()).await?, Vec::<Option<Vec<u8>>>::new(), "no blobs");
    Ok(())
}

/// Blobs are listed by name, a page at a time, each exactly once, with their size and when they were put.
pub async fn blobs_are_listed_in_pages(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    same!(scene.backend.list_blobs(&scene.workspace, None, 10).await?, [], "an empty place");
    let mut expected = Vec::new();
    for name in [7u8, 0, 255, 3, 128, 9, 200, 1] {
        scene.clock.advance_ms(1);
        let put = blob(name, vec![name; usize::from(name)]);
        expected.push(BlobInfo { id: put.id, bytes: u64::from(name), touched: scene.source.now() });
        scene.backend.put_blobs(&scene.workspace, vec![put]).await?;
    }
    expected.sort_by_key(|info| info.id);
    for limit in [1, 3, 8, 100, usize::MAX] {
        let mut found: Vec<BlobInfo> = Vec::new();
        loop {
            let after = found.last().map(|info| info.id);
            let page = scene.backend.list_blobs(&scene.workspace, after, limit).await?;
            ensure!(page.len() <= limit, "a page of {limit} has {} rows", page.len());
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        same!(found, expected, "all pages of {limit}");
    }
    Ok(())
}

/// Only a blob that no entry needs, and that was not put again lately, is dropped.
pub async fn only_idle_blobs_that_nothing_needs_are_dropped(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let names = |blobs: Vec<BlobInfo>| blobs.iter().map(|info| info.id.0[0]).collect::<Vec<u8>>();
    let put = (1..=5).map(|name| blob(name, vec![name])).collect();
    scene.backend.put_blobs(&scene.workspace, put).await?;
    let mut needed = entry(EntryKind::Message, "needs two");
    needed.refs = vec![BlobId([1; 32]), BlobId([2; 32])];
    let mut batch = scene.batch(&line, vec![needed]);
    batch.blobs = vec![blob(2, vec![2]), blob(6, vec![6])];
    line.length = scene.append(batch).await?.length;
    same!(
        scene.backend.blob_refs(&scene.workspace).await?,
        [BlobId([1; 32]), BlobId([2; 32])],
        "the blobs that entries need"
    );

    let all: Vec<BlobId> = (0..=9).map(|name| BlobId([name; 32])).collect();
    let before = scene.source.now();
    same!(
        scene.backend.drop_blobs(&scene.workspace, all.clone(), before).await?,
        0,
        "dropped at the moment of putting"
    );
    scene.clock.advance_ms(10);
    // Putting again pins it against a collection that is already under way.
    scene.backend.put_blobs(&scene.workspace, vec![blob(3, vec![3])]).await?;
    let mut pinning = scene.batch(&line, vec![entry(EntryKind::Event, "puts one again")]);
    pinning.blobs = vec![blob(4, vec![4])];
    line.length = scene.append(pinning).await?.length;
    scene.clock.advance_ms(10);
    let before = scene.source.now().plus_ms(-10);
    let some = vec![BlobId([5; 32]), BlobId([1; 32]), BlobId([3; 32])];
    same!(scene.backend.drop_blobs(&scene.workspace, some, before).await?, 1, "dropped of three");
    same!(scene.backend.drop_blobs(&scene.workspace, all.clone(), before).await?, 1, "dropped of all");
    scene.reopen().await?;
    let left = scene.backend.list_blobs(&scene.workspace, None, 100).await?;
    same!(names(left), [1, 2, 3, 4], "what is left");

    // What an entry no longer needs can go: after the entry was replaced, and after its session went.
    let mut batch = scene.batch(&line, vec![entry(EntryKind::Event, "erased")]);
    let mut erased = entry(EntryKind::Message, "needs one");
    erased.refs = vec![BlobId([1; 32])];
    batch.rewrite.entries = vec![(line.at(1), erased)];
    scene.append(batch).await?;
    let later = scene.source.now().plus_ms(1);
    same!(scene.backend.drop_blobs(&scene.workspace, all.clone(), later).await?, 3, "dropped after an erasure");
    scene.backend.remove(&scene.workspace, line.session, Epoch(0)).await?;
    same!(scene.backend.blob_refs(&scene.workspace).await?, [], "the blobs that entries need in the end");
    same!(scene.backend.drop_blobs(&scene.workspace, all, later).await?, 1, "dropped after a removal");
    same!(scene.backend.list_blobs(&scene.workspace, None, 100).await?, [], "what is left in the end");
    Ok(())
}

/// Blobs and entries of several megabytes come back bit for bit.
pub async fn large_blobs_come_back_whole(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let line = scene.begin().await?;
    let noise = |seed: u8, len: usize| {
        let mut bytes = vec![seed; len];
        scene.source.fill(&mut bytes);
        bytes
    };
    let blobs = vec![blob(1, noise(1, 5 << 20)), blob(2, noise(2, 3 << 20)), blob(3, noise(3, 1))];
    let body = noise(4, 2 << 20);
    let mut batch = scene.batch(&line, vec![entry(EntryKind::State, body.clone())]);
    batch.blobs = blobs.clone();
    scene.append(batch).await?;
    scene.reopen().await?;
    let found = scene.backend.get_blobs(&scene.workspace, blobs.iter().map(|blob| blob.id).collect()).await?;
    for (found, blob) in found.into_iter().zip(blobs) {
        ensure!(found == Some(blob.bytes), "blob {:?} came back changed", blob.id.0[0]);
    }
    let entries = scene.entries(line.timeline).await?;
    let stored = entries.iter().find(|(seq, _)| *seq == Seq(1)).map(|(_, entry)| &entry.body);
    ensure!(stored == Some(&body), "an entry of 2 MiB came back changed");
    Ok(())
}
