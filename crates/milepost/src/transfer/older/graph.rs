//! The directory of a graph's session: its state, its checkpoints, a conversation for every node.

use std::path::Path;

use milepost_model::{Channel, Timestamp};
use serde_json::Value;

use super::builder::Builder;
use super::say::{Said, said};
use super::{convert, detect, files, kept_files};
use crate::error::{Error, Result};
use crate::transfer::ImportOptions;

/// What a message belongs to, in the order of all of them.
struct Part {
    node: Channel,
    said: Said,
}

pub(super) fn build(dir: &Path, options: &ImportOptions) -> Result<Builder> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let about = object(&dir.join("state.json"), options)?;
    let index = object(&dir.join("checkpoints").join("index.json"), options)?;
    let directory = name.clone();
    let original = [&about, &index].into_iter().flatten().find_map(detect::session_of).unwrap_or(name);
    let mut builder = Builder::new(original, options);
    builder.keep_written("directory", directory.into());
    if let Some(Value::Object(about)) = &about {
        convert::about(&mut builder, about);
        builder.keep_written("metadata", Value::Object(about.clone()));
    }
    if let Some(mut index) = index {
        // What it lists is in the checkpoints.
        if let Some(map) = index.as_object_mut() {
            map.remove("checkpoints");
        }
        builder.keep_written("index", index);
    }
    let mut checkpoints = Vec::new();
    for path in listed(&dir.join("checkpoints"), options)? {
        if path.file_name().is_some_and(|name| name != "index.json") {
            checkpoints.extend(object(&path, options)?.filter(|found| found.get("checkpoint_id").is_some()));
        }
    }
    checkpoints.sort_by_key(|found| (detect::time_of(found), order(found)));
    let mut parts = parts(&dir.join("conversations"), options, &mut builder)?.into_iter().peekable();
    for checkpoint in checkpoints {
        let time = detect::time_of(&checkpoint);
        let counts = checkpoint.get("conversation_states").cloned().unwrap_or_default();
        let is_before = |builder: &Builder, part: &Part| match counts.get(part.node.as_str()).map(Value::as_u64) {
            Some(Some(count)) => builder.count(&part.node) < count,
            Some(None) | None => {
                part.said.time <= time && counts.as_object().is_none_or(|counts| counts.values().all(|v| !v.is_u64()))
            }
        };
        while parts.peek().is_some_and(|part| is_before(&builder, part)) {
            if let Some(part) = parts.next() {
                builder.message(part.said)?;
            }
        }
        if let Value::Object(map) = checkpoint {
            convert::graph(&mut builder, map)?;
        }
    }
    parts.try_for_each(|part| builder.message(part.said))?;
    for (below, prefix) in [("data", ""), ("logs", "logs/")] {
        for (name, path) in kept_files::of_graph(dir, below, options)? {
            builder.take_beside(Some(&format!("{prefix}{name}")), &path)?;
        }
    }
    builder.end();
    Ok(builder)
}

/// Ids that were made one after the other sort so.
fn order(found: &Value) -> String {
    found.get("checkpoint_id").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn object(path: &Path, options: &ImportOptions) -> Result<Option<Value>> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.is_file() => Ok(files::read(path, options)?.found.into_iter().next()),
        _ => Ok(None),
    }
}

/// Files of a directory in the order of their names; none when there is no directory. Links are not followed.
fn listed(dir: &Path, options: &ImportOptions) -> Result<Vec<std::path::PathBuf>> {
    if !std::fs::symlink_metadata(dir).is_ok_and(|about| about.is_dir()) {
        return Ok(Vec::new());
    }
    let failed = |error: std::io::Error| Error::file(format!("reading {}", dir.display()), error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        found.push(entry.map_err(failed)?.path());
        if found.len() as u64 > options.limits.max_messages {
            let max = options.limits.max_messages;
            return Err(Error::import(
                options.name(),
                format!("{} has more than {max} files, the limit max_messages", dir.display()),
            ));
        }
    }
    found.sort();
    Ok(found)
}

/// The messages of all nodes, by their times.
fn parts(dir: &Path, options: &ImportOptions, builder: &mut Builder) -> Result<Vec<Part>> {
    let mut found: Vec<(Option<Timestamp>, Part)> = Vec::new();
    for node_dir in listed(dir, options)? {
        let meta = object(&node_dir.join("meta.json"), options)?;
        let name = node_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = meta.as_ref().and_then(|meta| meta.get("node")?.as_str()).unwrap_or(&name).to_owned();
        let node = Channel::new(name).map_err(|error| builder.refuse(error.to_string()))?;
        let cursor = object(&node_dir.join("cursor.json"), options)?;
        for (file, said) in [("meta.json", meta), ("cursor.json", cursor)] {
            said.into_iter().for_each(|said| builder.keep_written(&format!("{node}/{file}"), said));
        }
        let mut last = None;
        for path in listed(&node_dir.join("parts"), options)? {
            let Some(value) = object(&path, options)? else { continue };
            let read = said(value).map_err(|why| builder.refuse(format!("{}: {why}", path.display())));
            let mut said = read?;
            said.message.channel = node.clone();
            // One without a time stays behind the one before it.
            last = said.time.max(last);
            found.push((last, Part { node: node.clone(), said }));
        }
    }
    found.sort_by_key(|(time, _)| *time);
    Ok(found.into_iter().map(|(_, part)| part).collect())
}
