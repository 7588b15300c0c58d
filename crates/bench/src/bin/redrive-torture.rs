//! The command line of the torture drivers. Exit code 0: every promise was kept; 1: a promise was broken, and
//! the output says how to reproduce it; 2: the driver itself failed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a command line")]

use redrive_bench::torture::args::Args;
use redrive_bench::torture::script::Script;
use redrive_bench::torture::{ToolResult, faultloop, kill, powercut, script, work};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "\
redrive-torture kill      [--cycles N] [--seed S] [--producers P] [--workers W] [--stop-early true]
redrive-torture powercut  [--states N] [--seed S] [--scripts N] [--steps N] [--nested N] [--long N] [--only SCRIPT:PLACE:ROUND]
redrive-torture faultloop [--modes all | NAME[/EVERY],…] [--seed S] [--steps N] [--served true] [--long true] [--k K]
redrive-torture work      --data D --log L [--producers P] [--workers W] [--seed S]      (the child of kill)
redrive-torture script    --data D --log L --script FILE                                 (the recorded child)
redrive-torture recover   --data D --log L                                               (the recovering child)

Everything happens in a temporary directory (TMPDIR; a directory in memory makes it quick). A build with the feature
`faults` has deliberate bugs: REDRIVE_FAULT=ack-before-commit, missing-fsync, eio-swallowed, audit-outside-commit.";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    match Args::parse(words).and_then(|args| run(&command, args)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("redrive-torture: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(command: &str, args: Args) -> ToolResult<bool> {
    match command {
        "kill" => kill(args),
        "powercut" => powercut(args),
        "faultloop" => faultloop(args),
        "work" => child_work(args),
        "script" => child_script(args),
        "recover" => child_recover(args),
        _ => Err(USAGE.into()),
    }
}

/// The directory for all files, with symbolic links resolved: the shim compares paths.
fn scratch() -> ToolResult<(tempfile::TempDir, PathBuf)> {
    let home = tempfile::Builder::new().prefix("redrive-torture").tempdir()?;
    let path = home.path().canonicalize()?;
    Ok((home, path))
}

fn kill(mut args: Args) -> ToolResult<bool> {
    let (_home, scratch) = scratch()?;
    let plan = kill::Plan {
        cycles: args.value_or("cycles", 100)?,
        seed: args.value_or("seed", 1)?,
        producers: args.value_or("producers", 4)?,
        workers: args.value_or("workers", 4)?,
        stop_early: args.value_or("stop-early", false)?,
        program: std::env::current_exe()?,
        scratch,
    };
    args.finish()?;
    let began = Instant::now();
    let report = kill::run(&plan)?;
    let kill::Report { cycles, enqueues, acks, others, found } = report;
    println!("{found}");
    println!(
        "kill: cycles={cycles} enqueues={enqueues} acks={acks} others={others} lost={} resurrected={} other={} seconds={:.1}",
        found.lost,
        found.resurrected,
        found.unopenable + found.other,
        began.elapsed().as_secs_f64(),
    );
    Ok(found.is_clean())
}

fn powercut(mut args: Args) -> ToolResult<bool> {
    let (_home, scratch) = scratch()?;
    let states = args.value_or("states", 2_000)?;
    let plan = powercut::Plan {
        states,
        seed: args.value_or("seed", 1)?,
        scripts: args.value_or("scripts", 4)?,
        steps: args.value_or("steps", 80)?,
        nested: args.value_or("nested", states / 200)?,
        long: args.value_or("long", states / 50)?,
        only: args.optional::<String>("only")?.as_deref().map(parse_state).transpose()?,
        program: std::env::current_exe()?,
        scratch,
    };
    args.finish()?;
    let began = Instant::now();
    let powercut::Report { states, nested, places, found } = powercut::run(&plan)?;
    println!("{found}");
    println!(
        "powercut: states={states} nested={nested} places={places} lost={} resurrected={} unopenable={} other={} seconds={:.1}",
        found.lost,
        found.resurrected,
        found.unopenable,
        found.other,
        began.elapsed().as_secs_f64(),
    );
    Ok(found.is_clean())
}

fn parse_state(text: &str) -> ToolResult<(u64, usize, u64)> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [script, place, round] => Ok((script.parse()?, place.parse()?, round.parse()?)),
        _ => Err(format!("{text:?} is not SCRIPT:PLACE:ROUND").into()),
    }
}

fn faultloop(mut args: Args) -> ToolResult<bool> {
    let (_home, scratch) = scratch()?;
    let plan = faultloop::Plan {
        modes: args.value_or("modes", "all".parse()?)?,
        seed: args.value_or("seed", 0)?,
        steps: args.value_or("steps", 0)?,
        served: args.value_or("served", false)?,
        long: args.value_or("long", false)?,
        only: args.optional("k")?,
        program: std::env::current_exe()?,
        scratch,
    };
    args.finish()?;
    let began = Instant::now();
    let faultloop::Report { reached, runs, answers, states, violations, found } = faultloop::run(&plan)?;
    for (mode, calls) in &reached {
        println!("  {mode}: every call up to {calls}");
    }
    println!("{found}");
    println!(
        "faultloop: runs={runs} answers={answers} states={states} violations={violations} lost={} resurrected={} unopenable={} other={} seconds={:.1}",
        found.lost,
        found.resurrected,
        found.unopenable,
        found.other,
        began.elapsed().as_secs_f64(),
    );
    Ok(found.is_clean())
}

fn child_work(mut args: Args) -> ToolResult<bool> {
    let (data, log): (PathBuf, PathBuf) = (args.required("data")?, args.required("log")?);
    let (producers, workers) = (args.value_or("producers", 4)?, args.value_or("workers", 4)?);
    let seed = args.value_or("seed", 1)?;
    args.finish()?;
    work::run(&data, &log, producers, workers, seed)?;
    Ok(true)
}

fn child_script(mut args: Args) -> ToolResult<bool> {
    let (data, log): (PathBuf, PathBuf) = (args.required("data")?, args.required("log")?);
    let path: PathBuf = args.required("script")?;
    args.finish()?;
    script::run(&data, &log, &Script::load(&path)?)?;
    Ok(true)
}

fn child_recover(mut args: Args) -> ToolResult<bool> {
    let (data, _log): (PathBuf, PathBuf) = (args.required("data")?, args.required("log")?);
    args.finish()?;
    script::recover(&data)?;
    Ok(true)
}
