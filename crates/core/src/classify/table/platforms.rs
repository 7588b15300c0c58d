//! The table, part four: operating systems, processes, containers, graphics processors, version control and build
//! tools.

use super::Strength::{Certain, Hint, Likely, Sure};
use super::{Rule, partial, rule};
use crate::failure::Category::{Persistent as P, Resource as R, Transient as T};
use crate::failure::Route::{Agent, Corruption, Network, System, Timeout};

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    // The operating system.
    rule(Sure, R, System, "the disk is full", &[
        "no space left", "no space left on device", "enospc", "disk full", "diskfull", "disk quota exceeded",
        "edquot", "not enough space on the disk", "not enough space", "insufficient disk space",
        "insufficient space", "out of disk space", "not enough disk space", "there is not enough space",
        "disk space", "device full", "volume is full", "low disk space", "file too large", "efbig",
        "no inodes"]),
    rule(Sure, R, System, "too many files, processes or ports are in use", &[
        "too many open files", "emfile", "enfile", "file table overflow", "too many files open",
        "too many processes", "file descriptors", "file descriptor limit", "cannot fork", "fork retry",
        "fork resource temporarily unavailable", "cannot assign requested address", "eaddrnotavail",
        "no more processes", "process limit", "inotify watches", "system limit for number of file watchers",
        "nproc", "open file limit", "paging file is too small",
        "insufficient system resources", "insufficient quota to complete"]),
    rule(Sure, T, System, "the host was busy for a moment", &[
        "resource temporarily unavailable", "device or resource busy", "resource busy", "text file busy",
        "etxtbsy", "ebusy", "eagain", "ewouldblock", "eintr", "interrupted system call", "stale file handle",
        "stale nfs file handle", "estale", "operation would block", "file is locked", "sharing violation",
        "process cannot access the file because", "lock file exists", "index lock", "another git process",
        "unable to create lock", "could not get lock", "waiting for file lock", "dpkg frontend lock"]),
    rule(Sure, P, System, "that is not permitted", &[
        "permission denied", "permission error", "access denied", "access is denied", "access to the path",
        "eacces", "eperm", "operation not permitted", "unauthorized", "unauthorised", "unauthorized access",
        "forbidden", "not authorized", "not authorised", "insufficient permissions", "insufficient privileges",
        "insufficient permission", "insufficient privilege", "insufficient scope", 
        "authentication failed", "authentication failure", "authentication error", "authentication required",
        "authentication exception", "authorization failed", "authorization error", "auth failed",
        "login failed", "login incorrect", "logon failure", "invalid login", "not authenticated",
        "unauthenticated", "bad credentials", "invalid credentials", "incorrect username or password",
        "wrong password", "invalid password", "invalid username", "password authentication failed",
        "invalid api key", "incorrect api key", "invalid x api key", "api key not valid", "api key expired",
        "invalid token", "token expired", "token has expired", "expired token", "token is expired",
        "invalid access token", "token invalid", "security token", "invalid auth", "not allowed to",
        "is not allowed", "access not allowed", "noauth", "wrongpass", "noperm",
        "account locked", "account is locked", "account suspended", "account disabled", "account has been",
        "user is not authorized", "jwt expired", "jwt malformed", "invalid jwt", "invalid signature",
        "signature expired", "signature does not match", "signature verification", "signature mismatch",
        "invalid grant", "invalid client", "unauthorized client", "invalid scope", "publickey",
        "could not read username", "requires authentication", "login required", "csrf",
        "permission was denied", "access refused", "code:permission denied", "code:unauthenticated",
        "missing authentication token", "no basic auth credentials", "denied access", 
        "selinux", "account not activated", "token revoked", "token was revoked", "session expired",
        "invalid session", "session not found", "consent required", "access blocked",
        "subscription is disabled", "ip not allowed", "ip address not allowed"]),
    rule(Sure, P, System, "that is not there", &[
        "no such file", "no such file or directory", "enoent", "file not found", "not found", "could not find",
        "cannot find the", "could not find file", "cannot find the path", "cannot find the file",
        "system cannot find", "enotdir", "not a directory", "is a directory", "eisdir", "directory not empty",
        "enotempty", "no such device", "enodev", "enxio", "no such process", "esrch", "path does not exist",
        "missing file", "no such container", "no such image", "no such volume", "no such object",
        "no such resource", "no such", "unable to find", "not registered", "could not be found",
        "cannot be found", "was not found", "404", "couldnt find", "unknown resource", "not exist",
        "record not found", "code:not found", "type:not found", "resource missing", "unable to locate",
        "file name too long", "enametoolong", "too many levels of symbolic links", "eloop",
        "invalid cross device link", "exdev"]),
    rule(Sure, P, System, "the host does not allow or support it", &[
        "read only file system", "erofs", "input output error", "eio", "i o error", "address already in use",
        "eaddrinuse", "exec format error", "bad interpreter", "command not found", "executable file not found",
        "cannot execute binary", "enosys", "function not implemented", "operation not supported", "eopnotsupp",
        "bad file descriptor", "ebadf", "cannot open shared object file", "shared object file",
        "shared libraries", "shared library", "library not loaded", "glibc", "unable to load dll",
        "unsatisfied link error", "dlopen", "protocol not supported", "port is already allocated",
        "spawn enoent", "einval", "invalid argument", "not supported", "unsupported platform",
        "driver version is insufficient", "no cuda capable device", "structure needs cleaning",
        "wrong fs type"]),

    // Processes and containers.
    rule(Sure, R, Agent, "the process was killed for its use of memory", &[
        "oomkilled", "oom killed", "sigkill", "signal 9", "killed signal 9", "exit code 137",
        "exited with code 137", "exit status 137", "exited with 137", 
        "out of memory killed process", "memory cgroup out of memory", "killed process", "signal killed",
        "container killed", "killed by the oom", "reason oomkilled", "exceeded memory limits killed",
        "running beyond physical memory limits", "running beyond virtual memory", "cgroup out of memory",
        "runtime exited with error signal killed", "memory limit killed"]),
    rule(Sure, T, Agent, "the process was told to stop", &[
        "exit code 143", "exited with code 143", "exit status 143", "exit code 130", "signal 2",
        "signal 1 sighup", "exit code 129", "pod evicted for node", "container was stopped",
        "process terminated by signal 15"]),
    rule(Sure, P, Agent, "the process crashed", &[
        "exit code 139", "exited with code 139", "exit code 134", "exit status 139", "exit status 134",
        "exited with code 134", "signal 11", "signal 6", "signal 8", "signal 4", "signal 7",
        "crash loop back off", "crashloopbackoff", "back off restarting failed container",
        "liveness probe failed", "readiness probe failed", "startup probe failed", "run container error",
        "exit code 255", "exit code 3221225477", "0xc0000005", "backofflimitexceeded",
        "backoff limit exceeded"]),
    rule(Sure, T, Timeout, "a time limit passed", &[
        "exit code 124", "exited with code 124", "exit status 124", "exited with 124", "was killed by timeout",
        "terminated by timeout", "active deadline exceeded"]),
    rule(Sure, P, System, "the program cannot be started", &[
        "exit code 127", "exit status 127", "exited with code 127", "exit code 126", "exit status 126",
        "exited with code 126", "create container config error", "createcontainerconfigerror",
        "create container error", "invalid image name", "err image pull", "image pull back off",
        "imagepullbackoff", "errimagepull", "manifest unknown", "manifest for not found", "pull access denied",
        "no matching manifest", "failed to pull image", "image not found",
        "repository does not exist or may require", "oci runtime create failed", "oci runtime exec failed",
        "failed to start container", "mount failed", "failed mount", "unable to attach or mount volumes",
        "secret not found", "configmap not found", "admission webhook", "denied the request",
        "is forbidden user", "no matches for kind", "unable to recognize", "field is immutable",
        "must specify limits", "namespace is being terminated", "no kind is registered"]),
    rule(Sure, R, System, "the cluster has no room for it", &[
        "insufficient cpu", "insufficient nvidia", "nodes are available", "failed scheduling", "unschedulable",
        "evicted", "the node was low on resource", "node was low on", "node had condition", "disk pressure",
        "exceeded quota", "pids limit", "ephemeral local storage usage exceeds", "ephemeral storage",
        "out of cpu", "out of pods", "insufficient ephemeral", "insufficient pods", "no nodes available",
        "cannot schedule", "insufficient capacity", "capacity not available", "no capacity"]),
    rule(Likely, T, System, "the platform was not ready", &[
        "cannot connect to the docker daemon", "is the docker daemon running", "failed to create pod sandbox",
        "etcdserver", "object has been modified", "leader changed", "the server is currently unable to handle",
        "node not ready", "node is not ready", "failed calling webhook", "container runtime is down",
        "runtime network not ready", "cni plugin"]),

    // Graphics processors.
    rule(Sure, R, System, "the graphics processor has no room", &[
        "cuda out of memory", "cuda error out of memory", "hip out of memory", "cublas status alloc failed",
        "cuda error memory allocation", "cudnn status alloc failed", "tried to allocate",
        "mps backend out of memory", "resource exhausted oom when allocating", "gpu memory",
        "no gpu available", "all gpus are busy", "vram"]),
    rule(Sure, P, Agent, "a mistake in code for the graphics processor", &[
        "device side assert", "illegal memory access", "size mismatch", "cublas status execution failed",
        "cuda kernel errors", "invalid device function", "size of tensor"]),
    rule(Sure, P, System, "the graphics processor or its driver does not fit", &[
        "no cuda gpus are available", "cuda driver", "invalid device ordinal", "nvidia driver",
        "no kernel image is available", "torch not compiled with cuda", "cuda unknown error",
        "gpu has fallen off the bus"]),

    // Version control and build tools.
    rule(Sure, P, Agent, "the work itself does not fit together", &[
        "merge conflict", "merge conflicts", "automatic merge failed", "conflict content",
        "patch does not apply", "patch failed", "would be overwritten by merge", "non fast forward",
        "fetch first", "failed to push some refs", "unrelated histories", "nothing to commit", "needs merge",
        "could not apply", "unmerged files", "pathspec did not match", "eresolve",
        "unable to resolve dependency tree", "peer dep", "conflicting dependencies", "resolution impossible",
        "no matching version", "version solving failed", "failed to select a version",
        "no matching distribution", "missing script", "elifecycle", "gradle build failed", "build failure",
        "task failed with an exception", "execution failed for task", "error ts", "eslint", "npm err code 1",
        "make error 1", "error 1 make", "recipe for target failed", "no rule to make target",
        "ninja build stopped", "failed to build", "could not resolve dependencies for project",
        "rust build failed", "error e0", "go build failed", "syntax error near unexpected token",
        "unbound variable", "parameter not set", "already checked out", "detached head", "missing commit",
        "no commits", "playwright test failed", "expected to equal", "snapshot mismatch",
        "snapshot tests failed"]),
    rule(Sure, P, System, "the repository or the tool is not set up", &[
        "not a git repository", "repository not found", "could not read from remote repository",
        "dubious ownership", "protected branch", "remote rejected", "pre receive hook declined", "gh006",
        "unknown revision", "bad revision", "couldnt find remote ref", "remote ref does not exist",
        "is not a working tree", "e404", "e401", "e403", "no such package", "lfs object", "terraform init",
        "provider configuration", "backend initialization required", "missing tool", "unsupported engine",
        "ebadengine", "requires node", "requires python", "unsupported class version",
        "unsupported class file"]),
    rule(Likely, T, Network, "a download or an upload was interrupted", &[
        "rpc failed", "fetch pack unexpected disconnect", "index pack failed", "download failed",
        "failed to download", "error downloading", "upload failed", "failed to upload", "partial content",
        "transfer closed", "transfer interrupted", "network timeout npm", "npm err network",
        "spurious network error", "connection reset while downloading", "incomplete download", "curl 56",
        "curl 18", "curl 92", "curl 52", "curl 6", "curl 7", "http2 stream", "http 2 stream",
        "http2 framing layer", "stream was not closed cleanly", "temporary redirect",
        "mirror sync in progress"]),
    partial(Hint, None, Some(Agent), "a process or a tool says so", &[
        "command", "subprocess", "process", "exit", "exited", "script", "handler", "thread", "worker", "agent",
        "test", "tests", "compile"]),
    partial(Hint, None, Some(System), "a host or a cluster says so", &[
        "file", "directory", "device", "disk", "filesystem", "pod", "node", "container", "kubernetes",
        "kubectl", "docker", "volume", "config", "configuration", "credentials", "cluster", "role", "account",
        "policy", "bucket"]),
    rule(Likely, P, System, "it is about permissions", &["permission", "permissions", "policy violation"]),
    rule(Certain, R, Agent, "the process was killed for its use of memory", &["oom kill", "oom killer", "oom kill event", "oomkill"]),
    rule(Certain, T, Corruption, "what was transferred broke on the way; the next transfer may be whole", &[
        "downloaded archive", "partial file", "partial download", "re fetch", "bad digest", "content md5",
        "redownload", "re download", "download is incomplete", "downloaded file is corrupt"]),
];
