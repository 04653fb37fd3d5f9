//! What is wrong, and what to do.

use std::process::ExitCode;

use anyhow::Result;
use milepost::Diagnosis;
use milepost::context::history::Dialect;
use serde_json::json;

use super::store::{chosen, tell_unfinished};
use crate::app::App;
use crate::args::{self, RulesName};
use crate::out::{count as so_many, plain, short};

pub async fn run(app: &mut App, args: args::Doctor) -> Result<ExitCode> {
    let ids = chosen(app, args.session.as_deref()).await?;
    let engine = app.engine().await?;
    let rules = match args.rules {
        RulesName::Anthropic => Dialect::Anthropic,
        RulesName::Openai => Dialect::OpenAi,
    };
    // One session alone may take long.
    let waiting = app.waiting("looking at session");
    let mut found: Vec<Diagnosis> = Vec::new();
    let count = ids.len();
    for (number, id) in ids.into_iter().enumerate() {
        waiting.tell(number as u64 + 1, count as u64);
        found.push(engine.doctor(id, rules).await?);
    }
    waiting.end();
    let unfinished = match args.session {
        None => engine.store().unfinished().await.map_err(milepost::Error::from)?,
        Some(_) => Vec::new(),
    };
    let is_damaged = found.iter().any(|diagnosis| !diagnosis.problems.is_empty());
    let code = if is_damaged { ExitCode::from(5) } else { ExitCode::SUCCESS };
    if app.out.json {
        let ill: Vec<_> = found.iter().filter(|diagnosis| !diagnosis.is_well()).collect();
        app.out.json(&json!({ "sessions": count, "findings": ill, "unfinishedImports": unfinished }))?;
        return Ok(code);
    }
    for diagnosis in found.iter().filter(|diagnosis| !diagnosis.is_well()) {
        app.out.line(app.out.styles.bold(&diagnosis.session_id.to_string()))?;
        for problem in &diagnosis.problems {
            app.out.line(format!("  {} {}", app.out.styles.bad("damaged:"), plain(problem)))?;
        }
        if let Some(why) = &diagnosis.unreadable {
            app.out.line(format!("  {} {}", app.out.styles.warn("unreadable:"), plain(why)))?;
        }
        for ailment in &diagnosis.ailments {
            let at = ailment.at.map(|at| format!("entry {}: ", at.seq.0)).unwrap_or_default();
            let channel = if ailment.channel.is_main() {
                String::new()
            } else {
                format!("#{} ", plain(ailment.channel.as_str()))
            };
            app.out.line(format!("  {channel}{at}{}", plain(&ailment.why)))?;
        }
    }
    unfinished.iter().for_each(|id| tell_unfinished(app, *id));
    let ill = found.iter().filter(|diagnosis| !diagnosis.is_well()).count();
    match ill {
        0 => app.out.line(format!("{} {}", app.out.styles.good("well:"), so_many(count, "session")))?,
        _ => {
            app.out.line(format!("findings in {ill} of {}", so_many(count, "session")))?;
            let mended: Vec<String> =
                found.iter().filter(|diagnosis| !diagnosis.ailments.is_empty()).map(|d| short(d.session_id)).collect();
            if !mended.is_empty() {
                app.out.note(
                    "nothing has to be done about histories: requests are built from a view in which they are mended",
                );
            }
            if is_damaged {
                app.out.note("damaged entries: `milepost verify` shows how far it goes, `milepost sessions resume` passes over them");
            }
        }
    }
    Ok(code)
}
