//! The command line of the torture drivers. Exit code 0: every promise was kept; 1: one was not, with what it
//! takes to see that again; 2: the driver itself could not go on.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a command line")]

use redrive_bench::torture::args::Args;
use redrive_bench::torture::script::Script;
use redrive_bench::torture::{Outcome, faultloop, kill, powercut, script, work};
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

fn run(command: &str, args: Args) -> Outcome<bool> {
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

/// A directory for everything, without links in its name: the shim compares names.
fn scratch() -> Outcome<(tempfile::TempDir, PathBuf)> {
    let home = tempfile::Builder::new().prefix("redrive-torture").tempdir()?;
    let path = home.path().canonicalize()?;
    Ok((home, path))
}

fn kill(mut args: Args) -> Outcome<bool> {
    let (_home, scratch) = scratch()?;
    let plan = kill::Plan {
        cycles: args.or("cycles", 100)?,
        seed: args.or("seed", 1)?,
        producers: args.or("producers", 4)?,
        workers: args.or("workers", 4)?,
        stop_early: args.or("stop-early", false)?,
        program: std::env::current_exe()?,
        scratch,
    };
    args.done()?;
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

fn powercut(mut args: Args) -> Outcome<bool> {
    let (_home, scratch) = scratch()?;
    let states = args.or("states", 2_000)?;
    let plan = powercut::Plan {
        states,
        seed: args.or("seed", 1)?,
        scripts: args.or("scripts", 4)?,
        steps: args.or("steps", 80)?,
        nested: args.or("nested", states / 200)?,
        long: args.or("long", states / 50)?,
        only: args.maybe::<String>("only")?.as_deref().map(place).transpose()?,
        program: std::env::current_exe()?,
        scratch,
    };
    args.done()?;
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

fn place(text: &str) -> Outcome<(u64, usize, u64)> {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [script, place, round] => Ok((script.parse()?, place.parse()?, round.parse()?)),
        _ => Err(format!("{text:?} is not SCRIPT:PLACE:ROUND").into()),
    }
}

fn faultloop(mut args: Args) -> Outcome<bool> {
    let (_home, scratch) = scratch()?;
    let plan = faultloop::Plan {
        modes: args.or("modes", "all".parse()?)?,
        seed: args.or("seed", 0)?,
        steps: args.or("steps", 0)?,
        served: args.or("served", false)?,
        long: args.or("long", false)?,
        only: args.maybe("k")?,
        program: std::env::current_exe()?,
        scratch,
    };
    args.done()?;
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

fn child_work(mut args: Args) -> Outcome<bool> {
    let (data, log): (PathBuf, PathBuf) = (args.need("data")?, args.need("log")?);
    let (producers, workers) = (args.or("producers", 4)?, args.or("workers", 4)?);
    let seed = args.or("seed", 1)?;
    args.done()?;
    work::run(&data, &log, producers, workers, seed)?;
    Ok(true)
}

fn child_script(mut args: Args) -> Outcome<bool> {
    let (data, log): (PathBuf, PathBuf) = (args.need("data")?, args.need("log")?);
    let path: PathBuf = args.need("script")?;
    args.done()?;
    script::run(&data, &log, &Script::load(&path)?)?;
    Ok(true)
}

fn child_recover(mut args: Args) -> Outcome<bool> {
    let (data, _log): (PathBuf, PathBuf) = (args.need("data")?, args.need("log")?);
    args.done()?;
    script::recover(&data)?;
    Ok(true)
}
