//! The socket suite: the same work on a store in this process and on one that another process holds, in turn, in the
//! same run. What it shows is the ratio of the two: what the path between the processes costs. Rates depend on what else
//! the machine does; the processor time of all processes together, for each message, hardly does.

use super::measure::{Run, new_histogram};
use super::printer::{Printer, Row};
use super::store::{cycle_run, enqueue_run, open};
use super::{BenchArgs, BenchError, BenchResult, failed_at, temp_directory};
use redrive::core::store::Store;
use redrive_store::remote::RemoteStore;
use serde::Serialize;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The numbers of callers, each with what its messages are divided by, so that its runs take about equally long.
const CALLERS: [(usize, u64); 3] = [(1, 20), (8, 4), (64, 1)];
/// Messages in one call of the rows about batches.
const BATCH: usize = 100;
/// What the holding process says when clients can connect.
const READY: &str = "ready";

/// The processor time that this process has used.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    Duration::from_secs(part(used.tv_sec)) + Duration::from_nanos(part(used.tv_nsec))
}

/// A process that holds a data directory and serves its socket.
struct Holder {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts this program once more, as the holder of the directory.
    fn start(directory: &Path) -> BenchResult<Self> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program)
            .args(["--suite", "socket", "--hold"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or("the holder has no standard output")?;
        let mut holder = Self { child, says: BufReader::new(out) };
        if holder.line()? != READY {
            return Err("the process that should hold the data directory did not open it".into());
        }
        Ok(holder)
    }

    fn line(&mut self) -> BenchResult<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Ends the process and returns the processor time that it used since it was ready.
    fn end(mut self) -> BenchResult<Duration> {
        // It ends when nobody is left to write to it.
        drop(self.child.stdin.take());
        let nanos = self.line()?.parse()?;
        self.child.wait()?;
        Ok(Duration::from_nanos(nanos))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Holds a data directory and serves its socket until the standard input ends.
pub(super) async fn hold(directory: &Path, printer: &Printer) -> BenchResult<()> {
    let store = redrive_store::open_serving(directory, redrive_store::sqlite::Options::default())?;
    let before = cpu_time();
    printer.say(READY);
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    printer.say(&(cpu_time() - before).as_nanos().to_string());
    drop(store);
    ended.map_err(|error| BenchError::from(format!("waiting for the end panicked: {error}")))??;
    Ok(())
}

/// Runs the suite.
pub(super) async fn run(printer: &Printer, args: BenchArgs) -> BenchResult<()> {
    let root = temp_directory(&args);
    let result = measure_all(printer, &args, &root).await;
    let _ = std::fs::remove_dir_all(&root);
    printer.figures(&result?)?;
    Ok(())
}

/// What is measured.
#[derive(Clone, Copy)]
enum Work {
    Enqueue,
    LifeOneByOne,
    LifeInBatches,
}

impl Work {
    const ALL: [Self; 3] = [Self::Enqueue, Self::LifeOneByOne, Self::LifeInBatches];

    const fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::LifeOneByOne | Self::LifeInBatches => "enqueue, lease, ack",
        }
    }

    const fn batch(self) -> usize {
        match self {
            Self::Enqueue | Self::LifeOneByOne => 1,
            Self::LifeInBatches => BATCH,
        }
    }

    async fn run(
        self,
        store: Arc<dyn Store>,
        args: &BenchArgs,
        callers: usize,
        messages: u64,
    ) -> BenchResult<Run> {
        let args = BenchArgs { producers: callers, ..args.clone() };
        match self {
            Self::Enqueue => enqueue_run(store, &args, messages, false).await,
            Self::LifeOneByOne => cycle_run(store, &args, messages / 2, 1, callers).await,
            Self::LifeInBatches => {
                let least = (callers * BATCH) as u64 * 2;
                cycle_run(store, &args, messages.max(least), BATCH, callers).await
            }
        }
    }
}

async fn measure_all(printer: &Printer, args: &BenchArgs, root: &Path) -> BenchResult<Vec<Figure>> {
    let messages = args.messages.unwrap_or(100_000);
    printer.note(&format!(
        "socket suite in {}: {} runs, {messages} messages of {} bytes with 64 callers, fewer with less",
        root.display(),
        args.runs,
        args.payload
    ));
    let mut figures = Vec::new();
    for work in Work::ALL {
        for (callers, divided_by) in CALLERS {
            let mut pairs = Vec::new();
            for number in 1..=args.runs.max(1) {
                let directory = root.join(format!("{}-{}-{callers}-{number}", work.name(), work.batch()));
                std::fs::create_dir_all(&directory).map_err(|e| failed_at("create", &directory, &e))?;
                let store = open(directory.join("library")).await?;
                let library = timed(work, store, args, callers, messages / divided_by).await?;
                let held = directory.join("socket");
                let holder = Holder::start(&held)?;
                let store: Arc<dyn Store> = Arc::new(RemoteStore::connect(&held).await?);
                let mut socket = timed(work, store, args, callers, messages / divided_by).await?;
                socket.cpu += holder.end()?;
                pairs.push((library, socket));
                let _ = std::fs::remove_dir_all(&directory);
            }
            figures.push(Figure::of(work, callers, &pairs));
        }
    }
    Ok(figures)
}

/// A run and the processor time that it took, of all processes together.
struct Timed {
    run: Run,
    cpu: Duration,
}

impl Timed {
    fn cpu_us_per_message(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a measured time is not exact")]
        let messages = self.run.items as f64;
        self.cpu.as_secs_f64() * 1e6 / messages.max(1.0)
    }
}

async fn timed(
    work: Work,
    store: Arc<dyn Store>,
    args: &BenchArgs,
    callers: usize,
    messages: u64,
) -> BenchResult<Timed> {
    let before = cpu_time();
    let run = work.run(store, args, callers, messages).await?;
    Ok(Timed { run, cpu: cpu_time() - before })
}

/// One row of the report.
#[derive(Serialize)]
struct Figure {
    what: &'static str,
    callers: usize,
    batch: usize,
    runs: usize,
    library_per_second: f64,
    socket_per_second: f64,
    /// The median over the runs of the socket's rate divided by the library's rate of the same run.
    of_library: f64,
    library_cpu_us: f64,
    socket_cpu_us: f64,
    library_p50_us: u64,
    library_p99_us: u64,
    socket_p50_us: u64,
    socket_p99_us: u64,
}

impl Figure {
    fn of(work: Work, callers: usize, pairs: &[(Timed, Timed)]) -> Self {
        let median = |of: &dyn Fn(&(Timed, Timed)) -> f64| {
            let mut values: Vec<f64> = pairs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        let (mut library, mut socket) = (new_histogram(), new_histogram());
        for (by_library, by_socket) in pairs {
            let _ = library.add(&by_library.run.calls);
            let _ = socket.add(&by_socket.run.calls);
        }
        Self {
            what: work.name(),
            callers,
            batch: work.batch(),
            runs: pairs.len(),
            library_per_second: median(&|(library, _)| library.run.rate()),
            socket_per_second: median(&|(_, socket)| socket.run.rate()),
            of_library: median(&|(library, socket)| socket.run.rate() / library.run.rate()),
            library_cpu_us: median(&|(library, _)| library.cpu_us_per_message()),
            socket_cpu_us: median(&|(_, socket)| socket.cpu_us_per_message()),
            library_p50_us: library.value_at_quantile(0.50),
            library_p99_us: library.value_at_quantile(0.99),
            socket_p50_us: socket.value_at_quantile(0.50),
            socket_p99_us: socket.value_at_quantile(0.99),
        }
    }
}

impl Row for Figure {
    const HEADINGS: &'static [&'static str] = &[
        "what",
        "callers",
        "batch",
        "library/s",
        "socket/s",
        "of library",
        "cpu us library/socket",
        "library p50/p99 us",
        "socket p50/p99 us",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.what.into(),
            self.callers.to_string(),
            self.batch.to_string(),
            format!("{:.0}", self.library_per_second),
            format!("{:.0}", self.socket_per_second),
            format!("{:.2}", self.of_library),
            format!("{:.1}/{:.1}", self.library_cpu_us, self.socket_cpu_us),
            format!("{}/{}", self.library_p50_us, self.library_p99_us),
            format!("{}/{}", self.socket_p50_us, self.socket_p99_us),
        ]
    }
}
