//! The socket suite: the same work on a store in this process and on one that another process holds, reached over its
//! socket and over TCP as nodes do, in turn, in the same run. What it shows is the ratio to the store in this process: what
//! the path between the processes costs. Rates depend on what else the machine does; the processor time of all processes
//! together, for each message, hardly does.

use super::measure::{Run, new_histogram};
use super::printer::{Printer, Row};
use super::store::{cycle_run, enqueue_run, open};
use super::{BenchArgs, BenchError, BenchResult, failed_at, temp_directory};
use redrive::core::store::Store;
use redrive_store::entropy::System;
use redrive_store::remote::RemoteStore;
use redrive_store::remote::tcp::{self, Identity, Published, TcpLimits};
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

/// A process that holds a data directory and serves its socket and a port.
struct Holder {
    child: Child,
    says: BufReader<ChildStdout>,
    address: String,
    published: Published,
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
        let mut says = BufReader::new(out);
        if line(&mut says)? != READY {
            return Err("the process that should hold the data directory did not open it".into());
        }
        let address = line(&mut says)?;
        let published = serde_json::from_str(&line(&mut says)?)?;
        Ok(Self { child, says, address, published })
    }

    /// Connects to it.
    async fn reach(&self, route: Route, directory: &Path) -> BenchResult<Arc<dyn Store>> {
        Ok(match route {
            Route::Socket => Arc::new(RemoteStore::connect(directory).await?),
            Route::Tcp => Arc::new(tcp::connect(self.address.clone(), self.published.clone()).await?),
        })
    }

    /// Ends the process and returns the processor time that it used since it was ready.
    fn end(mut self) -> BenchResult<Duration> {
        // It ends when nobody is left to write to it.
        drop(self.child.stdin.take());
        let nanos = line(&mut self.says)?.parse()?;
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

fn line(says: &mut BufReader<ChildStdout>) -> BenchResult<String> {
    let mut line = String::new();
    says.read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Holds a data directory and serves its socket and a port until the standard input ends.
pub(super) async fn hold(directory: &Path, printer: &Printer) -> BenchResult<()> {
    let store = redrive_store::open_serving(directory, redrive_store::sqlite::Options::default())?;
    let identity = Identity::new(&System)?;
    let published = serde_json::to_string(&identity.published())?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let server = tcp::serve(&store, listener, identity, TcpLimits::default())?;
    let before = cpu_time();
    printer.say(READY);
    printer.say(&server.address().to_string());
    printer.say(&published);
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    printer.say(&(cpu_time() - before).as_nanos().to_string());
    drop((server, store));
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

/// A way to a store that another process holds.
#[derive(Clone, Copy)]
enum Route {
    Socket,
    Tcp,
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
            let mut runs = Vec::new();
            for number in 1..=args.runs.max(1) {
                let directory = root.join(format!("{}-{}-{callers}-{number}", work.name(), work.batch()));
                std::fs::create_dir_all(&directory).map_err(|e| failed_at("create", &directory, &e))?;
                let store = open(directory.join("library")).await?;
                let library = timed(work, store, args, callers, messages / divided_by).await?;
                let mut others = Vec::new();
                for (route, name) in [(Route::Socket, "socket"), (Route::Tcp, "tcp")] {
                    let held = directory.join(name);
                    let holder = Holder::start(&held)?;
                    let store = holder.reach(route, &held).await?;
                    let mut other = timed(work, store, args, callers, messages / divided_by).await?;
                    other.cpu += holder.end()?;
                    others.push(other);
                }
                runs.push((library, others));
                let _ = std::fs::remove_dir_all(&directory);
            }
            figures.push(Figure::of(work, callers, &runs));
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

/// What was measured on one path.
#[derive(Serialize)]
struct Measured {
    per_second: f64,
    /// The median over the runs of the rate divided by the library's rate of the same run.
    of_library: f64,
    cpu_us: f64,
    p50_us: u64,
    p99_us: u64,
}

impl Measured {
    /// From the runs on this path, each beside the library's of the same run.
    fn of(runs: &[(&Timed, &Timed)]) -> Self {
        let median = |of: &dyn Fn(&(&Timed, &Timed)) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        let mut calls = new_histogram();
        for (_, timed) in runs {
            let _ = calls.add(&timed.run.calls);
        }
        Self {
            per_second: median(&|(_, timed)| timed.run.rate()),
            of_library: median(&|(library, timed)| timed.run.rate() / library.run.rate()),
            cpu_us: median(&|(_, timed)| timed.cpu_us_per_message()),
            p50_us: calls.value_at_quantile(0.50),
            p99_us: calls.value_at_quantile(0.99),
        }
    }
}

/// One row of the report.
#[derive(Serialize)]
struct Figure {
    what: &'static str,
    callers: usize,
    batch: usize,
    runs: usize,
    library: Measured,
    socket: Measured,
    tcp: Measured,
}

impl Figure {
    fn of(work: Work, callers: usize, runs: &[(Timed, Vec<Timed>)]) -> Self {
        let other = |n: usize| -> Vec<_> {
            runs.iter().filter_map(|(library, others)| Some((library, others.get(n)?))).collect()
        };
        let library: Vec<_> = runs.iter().map(|(library, _)| (library, library)).collect();
        Self {
            what: work.name(),
            callers,
            batch: work.batch(),
            runs: runs.len(),
            library: Measured::of(&library),
            socket: Measured::of(&other(0)),
            tcp: Measured::of(&other(1)),
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
        "tcp/s",
        "socket, tcp of library",
        "cpu us library/socket/tcp",
        "p50 us library/socket/tcp",
        "p99 us library/socket/tcp",
    ];

    fn cells(&self) -> Vec<String> {
        let Self { library, socket, tcp, .. } = self;
        vec![
            self.what.into(),
            self.callers.to_string(),
            self.batch.to_string(),
            format!("{:.0}", library.per_second),
            format!("{:.0}", socket.per_second),
            format!("{:.0}", tcp.per_second),
            format!("{:.2}, {:.2}", socket.of_library, tcp.of_library),
            format!("{:.1}/{:.1}/{:.1}", library.cpu_us, socket.cpu_us, tcp.cpu_us),
            format!("{}/{}/{}", library.p50_us, socket.p50_us, tcp.p50_us),
            format!("{}/{}/{}", library.p99_us, socket.p99_us, tcp.p99_us),
        ]
    }
}
