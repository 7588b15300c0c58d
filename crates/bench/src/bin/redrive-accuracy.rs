//! The command line of the accuracy measurements. Exit code 0: measured; 2: the measurement failed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a command line")]

use redrive_bench::accuracy::{classes, filing, grouping};
use std::process::ExitCode;

const USAGE: &str = "\
redrive-accuracy grouping FILE.csv… [--wrong N]
redrive-accuracy filing FILE.csv… [--orders N] [--seed N]
redrive-accuracy classes FILE.jsonl [--table off] [--leave-one-out]

grouping: how well error lines are grouped. Each file has the columns `content` and `group` (the true one). GA is the
share of lines whose group holds exactly the right lines, GT the share of true groups found exactly. --wrong N shows
for each file the N largest true groups that were not found.

filing: the share of lines that a real store, failing them in random orders with a restart in the middle, puts
together with exactly the lines that `redrive signature` does.

classes: how often category and route of errors are right. Each line of the file has error_type, code, message,
category and route.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = words.split_first() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let report = match command.as_str() {
        "grouping" => grouping::run(rest),
        "filing" => filing::run(rest),
        "classes" => measure_classes(rest),
        _ => Err(USAGE.into()),
    };
    match report {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("redrive-accuracy: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure_classes(words: &[String]) -> Result<String, Box<dyn std::error::Error>> {
    let mut plan = classes::Plan { table: true, leave_one_out: false };
    let mut file = None;
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--table" => {
                plan.table = match words.next() {
                    Some("on") => true,
                    Some("off") => false,
                    _ => return Err("--table is on or off".into()),
                }
            }
            "--leave-one-out" => plan.leave_one_out = true,
            path if file.is_none() && !path.starts_with('-') => file = Some(path),
            _ => return Err(USAGE.into()),
        }
    }
    let path = file.ok_or(USAGE)?;
    let text = std::fs::read_to_string(path).map_err(|error| format!("failed to read {path}: {error}"))?;
    Ok(format!("{}\n", classes::measure(&classes::read(&text)?, plan)?))
}
