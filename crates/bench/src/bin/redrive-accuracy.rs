//! The command line of the accuracy measurements. Exit code 0: measured; 2: a file could not be read.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a command line")]

use redrive_bench::accuracy::grouping;
use std::process::ExitCode;

const USAGE: &str = "\
redrive-accuracy grouping FILE.csv… [--wrong N]

grouping: how well error lines are grouped. Each file has the columns `content` and `group` (the true one). GA is the
share of lines whose group holds exactly the right lines, GT the share of true groups found exactly. --wrong N shows
for each file the N largest true groups that were not found.";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = words.split_first() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let report = match command.as_str() {
        "grouping" => grouping::run(rest),
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
