//! Where this process runs, as it is kept with leases, failures and runs. Only says it; nothing is decided here.

/// The name of this machine; nothing where the system does not say.
pub(crate) fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name: String = name.trim().chars().filter(|c| !c.is_control()).take(64).collect();
    (!name.is_empty()).then_some(name)
}
