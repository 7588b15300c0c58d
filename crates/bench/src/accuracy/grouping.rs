//! Grouping accuracy as it is measured for log parsers: a line counts if its predicted group holds exactly
//! the lines of its true group. Redrive is compared with two simple baselines.

use redrive::core::failure::ErrorInfo;
use redrive::core::ids::GroupId;
use redrive::core::signature::{Signature, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

/// The result of a measurement.
pub(super) type ToolResult<T> = Result<T, Box<dyn Error>>;

/// The group of each line, as a number.
pub(super) type Groups = Vec<usize>;

/// A labelled set of lines.
pub(super) struct Labelled {
    pub(super) name: String,
    pub(super) lines: Vec<String>,
    truth: Groups,
}

/// Reads and measures the sets. The arguments are files and `--wrong N`.
///
/// # Errors
/// If a file cannot be read or lacks one of the two columns.
pub fn run(args: &[String]) -> Result<String, Box<dyn Error>> {
    let mut files = Vec::new();
    let mut wrong = 0;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--wrong" {
            wrong = args.next().ok_or("--wrong needs a number")?.parse()?;
        } else {
            files.push(arg.as_str());
        }
    }
    if files.is_empty() {
        return Err("grouping needs at least one file".into());
    }
    let mut report = String::new();
    writeln!(report, "set                  lines   true  found     GA     GT  numbers   five  klines/s")?;
    let mut sums = [0.0_f64; 4];
    let mut details = String::new();
    for file in &files {
        let set = read(Path::new(file))?;
        let (found, templates, seconds) = redrive(&set.lines);
        let (ga, gt) = accuracy(&set.truth, &found);
        let (numbers, _) = accuracy(&set.truth, &by_key(&set.lines, numbers_masked));
        let (five, _) = accuracy(&set.truth, &by_key(&set.lines, first_five_words));
        for (sum, figure) in sums.iter_mut().zip([ga, gt, numbers, five]) {
            *sum += figure;
        }
        let (lines, truths, founds) = (set.lines.len(), count(&set.truth), count(&found));
        let rate = as_float(lines) / seconds / 1e3;
        writeln!(
            report,
            "{:<18} {lines:>7} {truths:>6} {founds:>6} {ga:>6.3} {gt:>6.3} {numbers:>8.3} {five:>6.3} {rate:>9.0}",
            set.name,
        )?;
        if wrong > 0 {
            show_missed_groups(&mut details, &set, &found, &templates, wrong)?;
        }
    }
    let [ga, gt, numbers, five] = sums.map(|sum| sum / as_float(files.len()));
    writeln!(report, "{:<33} {ga:>14.3} {gt:>6.3} {numbers:>8.3} {five:>6.3}", "average")?;
    report.push_str(&details);
    Ok(report)
}

fn as_float(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::INFINITY, f64::from)
}

pub(super) fn read(path: &Path) -> ToolResult<Labelled> {
    let read_error = |error: &dyn Error| format!("failed to read {}: {error}", path.display());
    let mut reader = csv::Reader::from_path(path).map_err(|e| read_error(&e))?;
    let headers = reader.headers().map_err(|e| read_error(&e))?.clone();
    let column = |name: &str| {
        headers.iter().position(|h| h == name).ok_or_else(|| format!("{}: no column {name}", path.display()))
    };
    let (content, group) = (column("content")?, column("group")?);
    let (mut lines, mut labels) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record.map_err(|e| read_error(&e))?;
        lines.push(record.get(content).unwrap_or_default().to_owned());
        labels.push(record.get(group).unwrap_or_default().to_owned());
    }
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let truth = by_key(&labels, str::to_owned);
    Ok(Labelled { name, lines, truth })
}

/// The groups after all lines have been seen, the template of each line's group, and the seconds it takes to
/// group the same lines again.
pub(super) fn redrive(lines: &[String]) -> (Groups, Vec<String>, f64) {
    let mut tree = Tree::new();
    let mut leaves = Vec::with_capacity(lines.len());
    for line in lines {
        let error = ErrorInfo { message: line.clone(), ..ErrorInfo::default() };
        leaves.push(tree.learn(&Signature::of(&error)).leaf);
    }
    let ids: Vec<GroupId> = leaves.iter().map(|leaf| tree.group_of(*leaf).unwrap_or(*leaf)).collect();
    let mut shown: HashMap<GroupId, String> = HashMap::new();
    for id in &ids {
        shown.entry(*id).or_insert_with(|| tree.template_of(*id).unwrap_or_default());
    }
    let templates = ids.iter().map(|id| shown.get(id).cloned().unwrap_or_default()).collect();
    let mut numbers = HashMap::new();
    let groups = ids.iter().map(|id| number(&mut numbers, *id)).collect();
    let mut error = ErrorInfo::default();
    let started = CpuTimer::now();
    for line in lines.iter().cycle().take(lines.len() * PASSES) {
        error.message.clear();
        error.message.push_str(line);
        let placed = tree.learn(&Signature::of(&error));
        std::hint::black_box(tree.group_of(placed.leaf));
    }
    (groups, templates, (started.seconds() / as_float(PASSES)).max(1e-9))
}

/// The number of timed passes over the lines.
const PASSES: usize = 50;

/// The processor time of this thread where the system reports it, otherwise the wall clock time.
struct CpuTimer(Instant, Option<f64>);

impl CpuTimer {
    fn now() -> Self {
        Self(Instant::now(), processor_seconds())
    }

    fn seconds(&self) -> f64 {
        let used = self.1.zip(processor_seconds()).map(|(before, after)| after - before);
        used.unwrap_or_else(|| self.0.elapsed().as_secs_f64())
    }
}

fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse::<f64>().ok().map(|ns| ns / 1e9)
}

fn number<K: std::hash::Hash + Eq>(numbers: &mut HashMap<K, usize>, key: K) -> usize {
    let next = numbers.len();
    *numbers.entry(key).or_insert(next)
}

/// Groups lines that have the same key.
fn by_key(lines: &[String], key: impl Fn(&str) -> String) -> Groups {
    let mut numbers = HashMap::new();
    lines.iter().map(|line| number(&mut numbers, key(line))).collect()
}

/// The first baseline: every run of digits is equal.
fn numbers_masked(line: &str) -> String {
    let mut masked = String::with_capacity(line.len());
    for c in line.chars() {
        if !c.is_ascii_digit() {
            masked.push(c);
        } else if !masked.ends_with('#') {
            masked.push('#');
        }
    }
    masked
}

/// The second baseline: only the first five words count.
fn first_five_words(line: &str) -> String {
    line.split_whitespace().take(5).collect::<Vec<&str>>().join(" ")
}

fn count(groups: &Groups) -> usize {
    groups.iter().collect::<BTreeSet<_>>().len()
}

/// The lines of each group.
fn members(groups: &Groups) -> BTreeMap<usize, BTreeSet<usize>> {
    let mut members: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (line, group) in groups.iter().enumerate() {
        members.entry(*group).or_default().insert(line);
    }
    members
}

/// The share of lines, and of true groups, that are found exactly.
pub(super) fn accuracy(truth: &Groups, found: &Groups) -> (f64, f64) {
    let found: BTreeSet<BTreeSet<usize>> = members(found).into_values().collect();
    let truth = members(truth);
    let right: Vec<usize> =
        truth.values().filter(|lines| found.contains(*lines)).map(BTreeSet::len).collect();
    let lines: usize = truth.values().map(BTreeSet::len).sum();
    let share = |part: usize, all: usize| if all == 0 { 1.0 } else { as_float(part) / as_float(all) };
    (share(right.iter().sum(), lines), share(right.len(), truth.len()))
}

/// Shows the largest true groups that were missed, and the groups their lines were put into.
fn show_missed_groups(
    out: &mut String,
    set: &Labelled,
    found: &Groups,
    templates: &[String],
    wrong: usize,
) -> ToolResult<()> {
    let predicted = members(found);
    let exact: BTreeSet<&BTreeSet<usize>> = predicted.values().collect();
    let mut missed: Vec<BTreeSet<usize>> =
        members(&set.truth).into_values().filter(|lines| !exact.contains(lines)).collect();
    missed.sort_by_key(|lines| std::cmp::Reverse(lines.len()));
    for lines in missed.iter().take(wrong) {
        let first = lines.first().and_then(|line| set.lines.get(*line)).map_or("", String::as_str);
        writeln!(out, "\n{}: {} lines such as: {first}", set.name, lines.len())?;
        let mut parts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for line in lines {
            let group = found.get(*line).copied().unwrap_or_default();
            parts.entry(group).or_insert((0, *line)).0 += 1;
        }
        let mut parts: Vec<(usize, (usize, usize))> = parts.into_iter().collect();
        parts.sort_by_key(|(_, (n, _))| std::cmp::Reverse(*n));
        for (group, (n, line)) in parts.iter().take(6) {
            let size = predicted.get(group).map_or(0, BTreeSet::len);
            let template = templates.get(*line).map_or("", String::as_str);
            writeln!(out, "  {n} in a group of {size}: {template}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_groups_count() {
        assert_eq!(accuracy(&vec![0, 0, 1, 1], &vec![5, 5, 6, 6]), (1.0, 1.0));
        assert_eq!(accuracy(&vec![0, 0, 1, 1], &vec![5, 5, 6, 7]), (0.5, 0.5));
        assert_eq!(accuracy(&vec![0, 0, 0, 1], &vec![5, 5, 5, 5]), (0.0, 0.0));
        assert_eq!(accuracy(&Vec::new(), &Vec::new()), (1.0, 1.0));
    }

    #[test]
    fn the_simple_ways_do_what_they_say() {
        assert_eq!(numbers_masked("a12 b3"), "a# b#");
        assert_eq!(first_five_words("a  b c d e f"), "a b c d e");
    }
}
