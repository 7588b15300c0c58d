/*
 * A shim between a program and the C library (LD_PRELOAD) that counts, fails and records what the program
 * writes under one directory. The torture driver builds it at run time; nothing else uses it.
 *
 *   REDRIVE_SHIM_DIR      absolute path of the data directory; no other directory is watched
 *   REDRIVE_SHIM_LOG      absolute path of the log of replies, outside that directory
 *   REDRIVE_SHIM_TRACE    record everything into this file
 *   REDRIVE_SHIM_K        fail the K-th counted call (1 is the first); 0 or unset fails none
 *   REDRIVE_SHIM_CALLS    which calls count: letters w (writes), s (syncs), t (truncations)
 *   REDRIVE_SHIM_ERRNO    the error number
 *   REDRIVE_SHIM_HOW      error | short: a short write writes half of the data and returns that count
 *   REDRIVE_SHIM_FOREVER  letters of the calls that fail from the K-th on; empty fails one call only
 *
 * Every injected fault is appended to the log as "! call errno name", so the log shows which replies came after
 * it. Calls run under one lock, so the recorded order is the order in which they happened.
 *
 * A record is seven 64-bit numbers in the byte order of the machine (kind, descriptor, a, b, result, bytes of
 * name, bytes of data), then the name, then the data. Names are relative to the directory, "." is the directory itself.
 *
 *   kind 1 open      a = 1 if it created the file, b = 1 if it truncated it
 *   kind 2 close
 *   kind 3 write     a = offset, data = what was written
 *   kind 4 sync      result = 0 or the error
 *   kind 5 truncate  a = length
 *   kind 6 rename    name = from, data = to
 *   kind 7 unlink
 *   kind 8 link      name = from, data = to
 *   kind 9 log line  data = what was appended to the log
 *   kind 10 allocate a = offset, b = length
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 4096
#define NAME 256

enum { NOTHING = 0, FILE_HERE = 1, LOG_HERE = 2 };

static char tracked[FDS];
static char names[FDS][NAME];
static char dir[PATH_MAX], log_path[PATH_MAX];
static size_t dir_len;
static int trace_fd = -1, log_fd = -1;
static long fail_at, counted;
static int fail_errno = EIO, fail_short, failing;
static char counts[8], forever[8];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void copy_env(const char *name, char *into, size_t room)
{
    const char *value = getenv(name);
    into[0] = 0;
    if (value && strlen(value) < room)
        strcpy(into, value);
}

/* Opens a file on a high descriptor, so that it does not collide with those of the program. */
static int open_high(const char *path)
{
    int low = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int high = low < 0 ? -1 : (int)syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, 900);
    if (low >= 0)
        syscall(SYS_close, low);
    return high;
}

static void setup(void)
{
    char text[PATH_MAX];
    copy_env("REDRIVE_SHIM_DIR", dir, sizeof dir);
    dir_len = strlen(dir);
    copy_env("REDRIVE_SHIM_LOG", log_path, sizeof log_path);
    if (log_path[0])
        log_fd = open_high(log_path);
    copy_env("REDRIVE_SHIM_TRACE", text, sizeof text);
    if (text[0])
        trace_fd = open_high(text);
    copy_env("REDRIVE_SHIM_K", text, sizeof text);
    fail_at = atol(text);
    copy_env("REDRIVE_SHIM_ERRNO", text, sizeof text);
    if (text[0])
        fail_errno = atoi(text);
    copy_env("REDRIVE_SHIM_HOW", text, sizeof text);
    fail_short = strcmp(text, "short") == 0;
    copy_env("REDRIVE_SHIM_CALLS", counts, sizeof counts);
    copy_env("REDRIVE_SHIM_FOREVER", forever, sizeof forever);
}

static void enter(void)
{
    pthread_once(&once, setup);
    pthread_mutex_lock(&lock);
}

static void leave(void)
{
    int kept = errno;
    pthread_mutex_unlock(&lock);
    errno = kept;
}

/* The path relative to the directory, or NULL if it is not inside it. */
static const char *below(const char *path)
{
    if (!dir_len || strncmp(path, dir, dir_len) != 0)
        return NULL;
    if (path[dir_len] == 0)
        return ".";
    return path[dir_len] == '/' && path[dir_len + 1] ? path + dir_len + 1 : NULL;
}

static const char *is_here(int fd)
{
    return fd >= 0 && fd < FDS && tracked[fd] == FILE_HERE ? names[fd] : NULL;
}

static void put(const void *bytes, size_t length)
{
    const char *at = bytes;
    while (length > 0) {
        long done = syscall(SYS_write, trace_fd, at, length);
        if (done <= 0)
            abort(); /* an incomplete trace would prove nothing */
        at += done;
        length -= (size_t)done;
    }
}

static void record(int64_t kind, int fd, int64_t a, int64_t b, int64_t result, const char *name,
                   const void *data, size_t length)
{
    int kept = errno;
    int64_t head[7] = { kind, fd, a, b, result, (int64_t)strlen(name), (int64_t)length };
    if (trace_fd >= 0) {
        put(head, sizeof head);
        put(name, strlen(name));
        put(data, length);
    }
    errno = kept;
}

/* Whether this call must fail: 0 no, 1 with an error, 2 with a short write. */
static int fails(char letter, const char *call, const char *name)
{
    char line[NAME + 64];
    int hit = failing && strchr(forever, letter) != NULL;
    if (fail_at > 0 && strchr(counts, letter) && ++counted == fail_at) {
        failing = 1;
        hit = 1;
    }
    if (!hit)
        return 0;
    int length = snprintf(line, sizeof line, "! %s %d %s\n", call, fail_errno, name);
    if (log_fd >= 0)
        syscall(SYS_write, log_fd, line, (size_t)length);
    record(9, -1, 0, 0, 0, "", line, (size_t)length);
    if (fail_short && letter == 'w')
        return 2;
    errno = fail_errno;
    return 1;
}

static int opened(int fd, const char *path, int made, int emptied)
{
    const char *name = below(path);
    if (fd < 0 || fd >= FDS)
        return fd;
    tracked[fd] = NOTHING;
    if (name && strlen(name) < NAME) {
        tracked[fd] = FILE_HERE;
        strcpy(names[fd], name);
        record(1, fd, made, emptied, 0, name, "", 0);
    } else if (log_path[0] && strcmp(path, log_path) == 0) {
        tracked[fd] = LOG_HERE;
    }
    return fd;
}

static int open_it(int at, const char *path, int flags, mode_t mode)
{
    struct stat before;
    enter();
    int missing = below(path) && stat(path, &before) != 0;
    int fd = (int)syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0)
        opened(fd, path, missing && (flags & O_CREAT), !missing && (flags & O_TRUNC));
    leave();
    return fd;
}

#define MODE_OF(flags, mode)                                         \
    mode_t mode = 0;                                                 \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                           \
        va_list rest;                                                \
        va_start(rest, flags);                                       \
        mode = va_arg(rest, mode_t);                                 \
        va_end(rest);                                                \
    }

int open(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return open_it(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return open_it(AT_FDCWD, path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return open_it(at, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...)
{
    MODE_OF(flags, mode)
    return open_it(at, path, flags, mode);
}

int creat(const char *path, mode_t mode)
{
    return open_it(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *path, mode_t mode)
{
    return open_it(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int close(int fd)
{
    enter();
    if (is_here(fd))
        record(2, fd, 0, 0, 0, names[fd], "", 0);
    if (fd >= 0 && fd < FDS)
        tracked[fd] = NOTHING;
    int result = (int)syscall(SYS_close, fd);
    leave();
    return result;
}

/* The offset of the next write to a descriptor. */
static off_t position(int fd)
{
    struct stat now;
    if ((syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND) && fstat(fd, &now) == 0)
        return now.st_size;
    return (off_t)syscall(SYS_lseek, fd, (off_t)0, SEEK_CUR);
}

/* Writes one buffer; a negative offset means the current position of the descriptor. */
static ssize_t write_it(int fd, const void *data, size_t length, off_t offset)
{
    enter();
    const char *name = is_here(fd);
    int how = name && length > 0 ? fails('w', "write", name) : 0;
    if (how == 2)
        length = (length + 1) / 2;
    off_t at = offset >= 0 || !name ? offset : position(fd);
    ssize_t done = -1;
    if (how != 1) {
        done = offset >= 0 ? syscall(SYS_pwrite64, fd, data, length, offset)
                           : syscall(SYS_write, fd, data, length);
        if (done > 0 && name)
            record(3, fd, at, 0, 0, name, data, (size_t)done);
        if (done > 0 && fd >= 0 && fd < FDS && tracked[fd] == LOG_HERE)
            record(9, fd, 0, 0, 0, "", data, (size_t)done);
    }
    leave();
    return done;
}

ssize_t write(int fd, const void *data, size_t length)
{
    return write_it(fd, data, length, -1);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset)
{
    return write_it(fd, data, length, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset)
{
    return write_it(fd, data, length, offset);
}

/* Vectored writes are made one buffer at a time: callers must handle short counts anyway. */
ssize_t writev(int fd, const struct iovec *all, int count)
{
    for (int n = 0; n < count; n++)
        if (all[n].iov_len > 0)
            return write_it(fd, all[n].iov_base, all[n].iov_len, -1);
    return 0;
}

ssize_t pwritev(int fd, const struct iovec *all, int count, off_t offset)
{
    for (int n = 0; n < count; n++)
        if (all[n].iov_len > 0)
            return write_it(fd, all[n].iov_base, all[n].iov_len, offset);
    return 0;
}

ssize_t pwritev64(int fd, const struct iovec *all, int count, off_t offset)
{
    return pwritev(fd, all, count, offset);
}

static int sync_it(int fd, long number, const char *call)
{
    enter();
    const char *name = is_here(fd);
    int result = name && fails('s', call, name) ? -1 : (int)syscall(number, fd);
    if (name)
        record(4, fd, 0, 0, result ? errno : 0, name, "", 0);
    leave();
    return result;
}

int fsync(int fd)
{
    return sync_it(fd, SYS_fsync, "fsync");
}

int fdatasync(int fd)
{
    return sync_it(fd, SYS_fdatasync, "fdatasync");
}

static int truncate_it(int fd, off_t length)
{
    enter();
    const char *name = is_here(fd);
    int result = name && fails('t', "ftruncate", name) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
    if (name && result == 0)
        record(5, fd, length, 0, 0, name, "", 0);
    leave();
    return result;
}

int ftruncate(int fd, off_t length)
{
    return truncate_it(fd, length);
}

int ftruncate64(int fd, off_t length)
{
    return truncate_it(fd, length);
}

static int allocate_it(int fd, int mode, off_t offset, off_t length)
{
    enter();
    const char *name = is_here(fd);
    int result = name && fails('w', "fallocate", name) ? -1
                                                       : (int)syscall(SYS_fallocate, fd, mode, offset, length);
    if (name && result == 0)
        record(10, fd, offset, length, 0, name, "", 0);
    leave();
    return result;
}

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    return allocate_it(fd, mode, offset, length);
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    return allocate_it(fd, 0, offset, length) ? errno : 0;
}

/* Calls with two names: rename and link. A store never moves a file into or out of its directory. */
static void named(int64_t kind, const char *from, const char *to)
{
    const char *a = below(from), *b = below(to);
    if (a && b)
        record(kind, -1, 0, 0, 0, a, b, strlen(b));
    else if ((a || b) && trace_fd >= 0)
        abort();
}

int rename(const char *from, const char *to)
{
    enter();
    int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (result == 0)
        named(6, from, to);
    leave();
    return result;
}

int link(const char *from, const char *to)
{
    enter();
    int result = (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (result == 0)
        named(8, from, to);
    leave();
    return result;
}

static int unlink_it(int at, const char *path, int flags)
{
    enter();
    const char *name = below(path);
    int result = (int)syscall(SYS_unlinkat, at, path, flags);
    if (name && result == 0)
        record(7, -1, 0, 0, 0, name, "", 0);
    leave();
    return result;
}

int unlink(const char *path)
{
    return unlink_it(AT_FDCWD, path, 0);
}

int unlinkat(int at, const char *path, int flags)
{
    return unlink_it(at, path, flags);
}
