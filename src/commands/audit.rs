//! `veena audit`: who changed what, into a file, and whether a file is what was written.

use std::io::Cursor;
use std::pin::Pin;

use clap::Subcommand;
use serde_json::json;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use veena_contract::AuditKind;
use veena_contract::audit::{Broken, Verified, Verifier};

use super::Global;
use crate::flags;
use crate::output::{self, Failure, Outcome};

/// No record is longer.
const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// What to do with the audit trail.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Print the records that the cluster keeps, oldest first: one a line, in JSON, each with its hash.
    Export {
        /// Another tenant's than one's own, for operators.
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        /// What was denied, counted by who and by rule, instead of what was changed. It is a chain of its own.
        #[arg(long)]
        denials: bool,
        /// Only records behind this number: the last one of the export before.
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: u64,
    },
    /// Check a file that was exported, without a node: no record was changed, none is missing in between. Says the first that is not as it was.
    Verify {
        /// The file; - is the standard input. Exports that follow one another may be put together.
        file: String,
    },
}

/// Runs one of them.
pub async fn run(global: &Global, command: AuditCommand) -> Outcome {
    match command {
        AuditCommand::Export { tenant, denials, after } => {
            let kind = if denials { AuditKind::Denials } else { AuditKind::Changes };
            export(global, tenant.as_deref(), kind, after).await
        }
        AuditCommand::Verify { file } => verify(global, &file).await,
    }
}

/// What is exported is verified on its way, which also says where it goes on.
async fn export(global: &Global, tenant: Option<&str>, kind: AuditKind, after: u64) -> Outcome {
    let client = global.client()?;
    let (mut verifier, mut after) = (Verifier::default(), after);
    loop {
        let page = client.audit(tenant, kind, after).await?;
        if page.is_empty() {
            return Ok(());
        }
        output::raw(&page)?;
        let text = std::str::from_utf8(&page).map_err(|error| anyhow::anyhow!("what the server sends is not UTF-8: {error}"))?;
        text.split_terminator('\n').try_for_each(|line| verifier.line(line)).map_err(|broken| failed("what the server sends", &broken))?;
        let last = verifier.verified().map_or(after, |good| good.last);
        if last <= after {
            return Err(anyhow::anyhow!("the server sends records that were not asked for").into());
        }
        after = last;
    }
}

async fn verify(global: &Global, file: &str) -> Outcome {
    let (name, source): (&str, Pin<Box<dyn AsyncRead + Send>>) = match file {
        "-" => ("the standard input", Box::pin(Cursor::new(flags::read_file("-").await?))),
        path => (path, Box::pin(File::open(path).await.map_err(|error| Failure::Usage(format!("cannot read {path}: {error}")))?)),
    };
    let good = verified(source).await.map_err(|error| match error {
        Unverified::Unreadable(error) => Failure::Usage(format!("cannot read {name}: {error}")),
        Unverified::Broken(broken) => failed(name, &broken),
    })?;
    let Some(Verified { tenant, first, last, head }) = good else {
        if global.json {
            return output::json(&json!({ "records": 0 }));
        }
        return output::line(format!(
            "{name}: 0 records, and nothing is said of any: an export of what was never changed is empty, and so is one that was lost"
        ));
    };
    if global.json {
        return output::json(&json!({ "tenant": tenant, "first": first, "last": last, "head": head }));
    }
    output::line(format!("{name}: records {first} to {last} of the tenant {tenant} are as they were written"))?;
    if first > 1 {
        output::line(format!("it begins with record {first}: what came before is not in it, and nothing is said of that"))?;
    }
    output::line(format!("the last hash is {head}: a file that was cut off behind record {last} would be told by a later one alone"))
}

fn failed(name: &str, broken: &Broken) -> Failure {
    anyhow::anyhow!("{name} is not what was written: {broken}").into()
}

/// Why a file is not verified.
enum Unverified {
    Unreadable(std::io::Error),
    Broken(Broken),
}

async fn verified(source: impl AsyncRead + Unpin) -> Result<Option<Verified>, Unverified> {
    let (mut source, mut verifier, mut line) = (BufReader::new(source), Verifier::default(), Vec::new());
    loop {
        line.clear();
        let read = (&mut source).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await.map_err(Unverified::Unreadable)?;
        if read == 0 {
            return Ok(verifier.verified().cloned());
        }
        let record = line.strip_suffix(b"\n").unwrap_or(&line);
        // What is no text is no record, whatever stands in its place.
        let text = String::from_utf8_lossy(record);
        verifier.line(&text).map_err(Unverified::Broken)?;
    }
}
