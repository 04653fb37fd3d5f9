/*
 * Records what a process asks of its disk, and fails chosen requests.
 *
 * Loaded with LD_PRELOAD. Every change under MILEPOST_RECORD_DIR is done for real and then appended to
 * MILEPOST_RECORD_TRACE, in the order in which it happened: file creation, writes with their bytes, size changes,
 * syncs, renames, links, unlinks. Whatever goes to file descriptor 1 is recorded as an acknowledgement, so that "the
 * process said so" has its place between the writes and the syncs. `trace.rs` reads the format, `replay.rs` says what
 * each record means for a power cut.
 *
 * It keeps no table of descriptors: each call asks /proc/self/fd where the descriptor leads. dup, close, inherited
 * descriptors and fork therefore need no care. A file is named by its inode number; a `create` record starts a new
 * file even where the number was used before.
 *
 * Order is exact: a change and its record are made under one lock (a mutex for threads, a POSIX lock on the trace for
 * processes). A sync is two records, begin and end, with the lock released between them: a write that arrives during
 * a sync is not covered by it.
 *
 * Not seen: raw system calls (rustix's default backend, so the `tempfile` crate), io_uring, stdio, shared writable
 * maps. Files ending in "-shm" are left out on purpose: SQLite rebuilds them. sync_file_range, sync and syncfs are
 * not recorded and so give no durability. copy_file_range, sendfile, hole punching and exchanging renames are refused
 * for files in the directory, with the error that makes callers fall back to plain writes.
 *
 * Faults, as "KIND:N" or "KIND:N+" (the N-th from 1, or the N-th and all after), separated by commas, in
 * MILEPOST_FAULT or in the file MILEPOST_FAULT_FILE (read anew, with counts from zero, whenever it is replaced):
 *   fsync      a sync of a regular file fails with EIO and does nothing
 *   write      a write or an allocation fails with ENOSPC
 *   write-eio  the same with EIO
 *   wal-normal (N is not used) what synchronous=NORMAL would do: frames written to a "-wal" file are not synced by the
 *              commit that wrote them, which is told that they were; its header and its checkpoints are synced
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

#define EXPORT __attribute__((visibility("default")))
#define MAGIC 0x3154504du /* "MPT1" */
#define MAX_FAULTS 8
#define TRACE_FD_FLOOR 500

enum op { OP_CREATE = 1, OP_WRITE, OP_SIZE, OP_EXTEND, OP_SYNC_BEGIN, OP_SYNC_END, OP_RENAME, OP_UNLINK, OP_LINK, OP_ACK };
enum { FLAG_FAILED = 1, FLAG_DIR = 2 };

struct record {
    uint32_t magic;
    uint8_t op, flags;
    uint16_t path_len;
    uint32_t to_len, data_len;
    uint64_t ino, offset;
} __attribute__((packed));

enum fault_kind { FAULT_FSYNC, FAULT_WRITE, FAULT_WAL_NORMAL };
struct fault {
    enum fault_kind kind;
    int error, onward;
    uint64_t nth, seen;
};

static char root[PATH_MAX];
static size_t root_len;
static int trace_fd = -1;
static uint64_t sync_token;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct fault faults[MAX_FAULTS];
static int fault_count;
static const char *fault_file;
static struct stat fault_file_seen;

static void die(const char *why) {
    dprintf(2, "milepost recorder: %s: %s\n", why, strerror(errno));
    _exit(97);
}

/* ---- lock and trace ---- */

static void process_lock(short type) {
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    while (fcntl(trace_fd, F_SETLKW, &whole) < 0)
        if (errno != EINTR) die("cannot lock the trace");
}

static void lock(void) {
    pthread_mutex_lock(&mutex);
    process_lock(F_WRLCK);
}

/* Releases the lock and leaves errno as the recorded call set it. */
static void unlock(int error) {
    process_lock(F_UNLCK);
    pthread_mutex_unlock(&mutex);
    errno = error;
}

static void emit(enum op op, int flags, const char *path, const char *to, uint64_t ino, uint64_t offset,
                 const void *data, size_t data_len) {
    struct record head = {MAGIC, op, flags, path ? strlen(path) : 0, to ? strlen(to) : 0, data_len, ino, offset};
    struct iovec parts[4] = {{&head, sizeof head},
                             {(void *)path, head.path_len},
                             {(void *)to, head.to_len},
                             {(void *)data, data_len}};
    size_t total = sizeof head + head.path_len + head.to_len + data_len;
    if (syscall(SYS_writev, trace_fd, parts, 4) != (long)total) die("cannot write the trace");
}

/* ---- which file is it ---- */

/* The part of an absolute path below the recorded directory ("" for itself), or NULL when it is elsewhere. */
static const char *below_root(const char *path) {
    if (strncmp(path, root, root_len) != 0) return NULL;
    if (path[root_len] == 0) return path + root_len;
    return path[root_len] == '/' ? path + root_len + 1 : NULL;
}

static int ends_with(const char *path, const char *end) {
    size_t len = strlen(path), tail = strlen(end);
    return len >= tail && strcmp(path + len - tail, end) == 0;
}

static int is_shared_memory(const char *path) { return ends_with(path, "-shm"); }

/* Fills `buf` with where `fd` leads. Returns the part below the recorded directory, or NULL if it is not recorded. */
static const char *path_of_fd(int fd, char buf[PATH_MAX], struct stat *st) {
    static const char deleted[] = " (deleted)";
    char link[64];
    int saved = errno;
    if (trace_fd < 0 || fd < 0) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, buf, PATH_MAX - 1);
    errno = saved;
    if (n <= 0) return NULL;
    buf[n] = 0;
    const char *path = below_root(buf);
    if (!path || fstat(fd, st) != 0) {
        errno = saved;
        return NULL;
    }
    size_t tail = sizeof deleted - 1;
    if (st->st_nlink == 0 && (size_t)n > tail && strcmp(buf + n - tail, deleted) == 0) buf[n - tail] = 0;
    return is_shared_memory(path) ? NULL : path;
}

/* The same for a path: its folder is resolved, its last part is taken as it is (it may be a link or not exist). */
static const char *path_of_name(int dirfd, const char *name, char buf[PATH_MAX]) {
    char joined[PATH_MAX], folder[PATH_MAX], link[64];
    int saved = errno;
    const char *path = NULL;
    if (trace_fd < 0 || !name) return NULL;
    if (name[0] == '/' || dirfd == AT_FDCWD) {
        if (snprintf(joined, sizeof joined, "%s%s", name[0] == '/' ? "" : "./", name) >= PATH_MAX) return NULL;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
        if (snprintf(joined, sizeof joined, "%s/%s", link, name) >= PATH_MAX) return NULL;
    }
    char *slash = strrchr(joined, '/');
    const char *base = slash + 1;
    *slash = 0;
    if (realpath(joined[0] ? joined : "/", folder) &&
        snprintf(buf, PATH_MAX, "%s/%s", folder, base) < PATH_MAX)
        path = below_root(buf);
    errno = saved;
    return path && !is_shared_memory(path) ? path : NULL;
}

/* ---- faults ---- */

static void parse_faults(const char *spec) {
    fault_count = 0;
    while (spec && *spec && fault_count < MAX_FAULTS) {
        struct fault f = {0};
        size_t kind_len = strcspn(spec, ":");
        if (kind_len == 5 && !strncmp(spec, "fsync", 5)) f.kind = FAULT_FSYNC, f.error = EIO;
        else if (kind_len == 5 && !strncmp(spec, "write", 5)) f.kind = FAULT_WRITE, f.error = ENOSPC;
        else if (kind_len == 9 && !strncmp(spec, "write-eio", 9)) f.kind = FAULT_WRITE, f.error = EIO;
        else if (kind_len == 10 && !strncmp(spec, "wal-normal", 10)) f.kind = FAULT_WAL_NORMAL;
        else errno = EINVAL, die("unknown fault");
        if (spec[kind_len] != ':') errno = EINVAL, die("a fault needs a number");
        char *end;
        f.nth = strtoull(spec + kind_len + 1, &end, 10);
        f.onward = *end == '+';
        faults[fault_count++] = f;
        spec = end + f.onward;
        spec += strspn(spec, ",\n ");
    }
}

/* Reads the fault file if it is another one than last time. Replacing it by rename changes its inode, so that two
 * versions are told apart even within one tick of the clock. */
static void refresh_faults(void) {
    struct stat now;
    if (!fault_file) return;
    if (stat(fault_file, &now) != 0) memset(&now, 0, sizeof now);
    if (now.st_ino == fault_file_seen.st_ino && now.st_size == fault_file_seen.st_size &&
        !memcmp(&now.st_mtim, &fault_file_seen.st_mtim, sizeof now.st_mtim))
        return;
    fault_file_seen = now;
    char spec[512] = {0};
    int fd = syscall(SYS_openat, AT_FDCWD, fault_file, O_RDONLY | O_CLOEXEC, 0);
    if (fd >= 0) {
        if (read(fd, spec, sizeof spec - 1) < 0) spec[0] = 0;
        syscall(SYS_close, fd);
    }
    parse_faults(spec);
}

/* Counts one request, under the lock. Returns the error it must fail with, or 0. */
static int fault_for(enum fault_kind kind) {
    int error = 0;
    refresh_faults();
    for (int i = 0; i < fault_count; i++) {
        struct fault *f = &faults[i];
        if (f->kind != kind) continue;
        f->seen++;
        if (f->seen == f->nth || (f->onward && f->seen > f->nth)) error = f->error;
    }
    return error;
}

/* Frames of the WAL were written since its last sync was asked for. */
static int wal_frames_pending;
enum { WAL_HEADER_BYTES = 32 };

static void note_wal_write(const char *path, off_t offset) {
    if (offset >= WAL_HEADER_BYTES && ends_with(path, "-wal")) wal_frames_pending = 1;
}

/* Whether a sync is one that synchronous=NORMAL leaves out, under the lock: a sync that follows frames is a commit's,
 * one that follows the header or another sync is not. */
static int is_left_out(const char *path) {
    if (!ends_with(path, "-wal")) return 0;
    int frames = wal_frames_pending;
    wal_frames_pending = 0;
    for (int i = 0; i < fault_count; i++)
        if (faults[i].kind == FAULT_WAL_NORMAL) return frames;
    return 0;
}

__attribute__((constructor)) static void start(void) {
    const char *dir = getenv("MILEPOST_RECORD_DIR"), *trace = getenv("MILEPOST_RECORD_TRACE");
    if (!dir || !trace) return;
    if (!realpath(dir, root)) die("cannot resolve MILEPOST_RECORD_DIR");
    root_len = strlen(root);
    int fd = syscall(SYS_openat, AT_FDCWD, trace, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) die("cannot open MILEPOST_RECORD_TRACE");
    parse_faults(getenv("MILEPOST_FAULT"));
    fault_file = getenv("MILEPOST_FAULT_FILE");
    trace_fd = fcntl(fd, F_DUPFD_CLOEXEC, TRACE_FD_FLOOR);
    if (trace_fd < 0) die("cannot move the trace descriptor");
    syscall(SYS_close, fd);
}

/* ---- open ---- */

static int recorded_open(int dirfd, const char *name, int flags, mode_t mode) {
    char buf[PATH_MAX];
    struct stat st;
    const char *path = NULL;
    /* Without O_CREAT and O_TRUNC an open changes nothing on the disk. */
    if ((flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE) path = path_of_name(dirfd, name, buf);
    if (!path) return syscall(SYS_openat, dirfd, name, flags, mode);

    lock();
    int created = (flags & O_TMPFILE) == O_TMPFILE;
    long fd = -1;
    if ((flags & O_CREAT) && !created) {
        fd = syscall(SYS_openat, dirfd, name, flags | O_EXCL, mode);
        created = fd >= 0;
    }
    if (fd < 0 && !(flags & O_EXCL && flags & O_CREAT)) fd = syscall(SYS_openat, dirfd, name, flags, mode);
    int error = errno;
    if (fd >= 0 && (path = path_of_fd(fd, buf, &st)) && S_ISREG(st.st_mode)) {
        if (created) emit(OP_CREATE, 0, st.st_nlink ? path : NULL, NULL, st.st_ino, 0, NULL, 0);
        else if (flags & O_TRUNC) emit(OP_SIZE, 0, NULL, NULL, st.st_ino, 0, NULL, 0);
    }
    unlock(error);
    return fd;
}

static mode_t mode_arg(int flags, va_list args) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
}

#define DEFINE_OPEN(NAME)                              \
    EXPORT int NAME(const char *name, int flags, ...) { \
        va_list args;                                  \
        va_start(args, flags);                         \
        mode_t mode = mode_arg(flags, args);           \
        va_end(args);                                  \
        return recorded_open(AT_FDCWD, name, flags, mode); \
    }
#define DEFINE_OPENAT(NAME)                                       \
    EXPORT int NAME(int dirfd, const char *name, int flags, ...) { \
        va_list args;                                             \
        va_start(args, flags);                                    \
        mode_t mode = mode_arg(flags, args);                      \
        va_end(args);                                             \
        return recorded_open(dirfd, name, flags, mode);           \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
EXPORT int creat(const char *name, mode_t mode) { return recorded_open(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
EXPORT int creat64(const char *name, mode_t mode) { return creat(name, mode); }

/* ---- write ---- */

enum { AT_CURSOR = -1 };

/* `offset` is AT_CURSOR for a write at the descriptor's own position. */
static ssize_t plain_write(int fd, const void *data, size_t len, off_t offset) {
    return offset == AT_CURSOR ? syscall(SYS_write, fd, data, len) : syscall(SYS_pwrite64, fd, data, len, offset);
}

static ssize_t recorded_write(int fd, const void *data, size_t len, off_t offset) {
    char buf[PATH_MAX];
    struct stat st;
    if (fd == STDOUT_FILENO && trace_fd >= 0) {
        /* Record first: a test that has read the line must find it in the trace even if it kills us at once. Write
         * without the lock: a full pipe must not stop the other threads. */
        lock();
        emit(OP_ACK, 0, NULL, NULL, 0, 0, data, len);
        unlock(errno);
        return plain_write(fd, data, len, offset);
    }
    const char *path = path_of_fd(fd, buf, &st);
    if (!path) return plain_write(fd, data, len, offset);

    lock();
    int error = fault_for(FAULT_WRITE);
    ssize_t n = -1;
    if (!error) {
        n = plain_write(fd, data, len, offset);
        error = errno;
        if (n > 0) {
            /* Where the bytes went: O_APPEND overrules even pwrite's offset. */
            if (fcntl(fd, F_GETFL) & O_APPEND) offset = fstat(fd, &st) == 0 ? st.st_size - n : 0;
            else if (offset == AT_CURSOR) offset = lseek(fd, 0, SEEK_CUR) - n;
            note_wal_write(path, offset);
            emit(OP_WRITE, 0, NULL, NULL, st.st_ino, offset, data, n);
        }
    }
    unlock(error);
    return n;
}

static ssize_t recorded_writev(int fd, const struct iovec *parts, int count, off_t offset) {
    size_t total = 0, at = 0;
    if (count == 1) return recorded_write(fd, parts[0].iov_base, parts[0].iov_len, offset);
    for (int i = 0; i < count; i++) total += parts[i].iov_len;
    char *flat = malloc(total ? total : 1);
    if (!flat) die("no memory for a gathered write");
    for (int i = 0; i < count; at += parts[i++].iov_len) memcpy(flat + at, parts[i].iov_base, parts[i].iov_len);
    ssize_t n = recorded_write(fd, flat, total, offset);
    int error = errno;
    free(flat);
    errno = error;
    return n;
}

EXPORT ssize_t write(int fd, const void *data, size_t len) { return recorded_write(fd, data, len, AT_CURSOR); }
EXPORT ssize_t pwrite(int fd, const void *data, size_t len, off_t at) { return recorded_write(fd, data, len, at); }
EXPORT ssize_t pwrite64(int fd, const void *data, size_t len, off64_t at) { return recorded_write(fd, data, len, at); }
EXPORT ssize_t writev(int fd, const struct iovec *v, int n) { return recorded_writev(fd, v, n, AT_CURSOR); }
EXPORT ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) { return recorded_writev(fd, v, n, at); }
EXPORT ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) { return recorded_writev(fd, v, n, at); }
EXPORT ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t at, int flags) {
    (void)flags;
    return recorded_writev(fd, v, n, at);
}
EXPORT ssize_t pwritev64v2(int fd, const struct iovec *v, int n, off64_t at, int flags) { return pwritev2(fd, v, n, at, flags); }

/* Copies inside the kernel carry bytes past us: refuse them so that the caller writes. */
EXPORT ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t len, unsigned flags) {
    char buf[PATH_MAX];
    struct stat st;
    if (path_of_fd(out, buf, &st)) return errno = ENOSYS, -1;
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, len, flags);
}
EXPORT ssize_t sendfile64(int out, int in, off64_t *at, size_t len) {
    char buf[PATH_MAX];
    struct stat st;
    if (path_of_fd(out, buf, &st)) return errno = EINVAL, -1;
    return syscall(SYS_sendfile, out, in, at, len);
}
EXPORT ssize_t sendfile(int out, int in, off_t *at, size_t len) { return sendfile64(out, in, at, len); }

/* ---- size ---- */

EXPORT int ftruncate64(int fd, off64_t size) {
    char buf[PATH_MAX];
    struct stat st;
    if (!path_of_fd(fd, buf, &st)) return syscall(SYS_ftruncate, fd, size);
    lock();
    int rc = syscall(SYS_ftruncate, fd, size), error = errno;
    if (rc == 0) emit(OP_SIZE, 0, NULL, NULL, st.st_ino, size, NULL, 0);
    unlock(error);
    return rc;
}
EXPORT int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

EXPORT int truncate64(const char *name, off64_t size) {
    int fd = open(name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    int rc = ftruncate64(fd, size), error = errno;
    syscall(SYS_close, fd);
    errno = error;
    return rc;
}
EXPORT int truncate(const char *name, off_t size) { return truncate64(name, size); }

EXPORT int fallocate64(int fd, int mode, off64_t offset, off64_t len) {
    char buf[PATH_MAX];
    struct stat st;
    if (!path_of_fd(fd, buf, &st)) return syscall(SYS_fallocate, fd, mode, offset, len);
    if (mode & ~FALLOC_FL_KEEP_SIZE) return errno = EOPNOTSUPP, -1;
    lock();
    int rc = -1, error = fault_for(FAULT_WRITE);
    if (!error) {
        rc = syscall(SYS_fallocate, fd, mode, offset, len);
        error = errno;
        if (rc == 0 && mode == 0) emit(OP_EXTEND, 0, NULL, NULL, st.st_ino, offset + len, NULL, 0);
    }
    unlock(error);
    return rc;
}
EXPORT int fallocate(int fd, int mode, off_t offset, off_t len) { return fallocate64(fd, mode, offset, len); }
EXPORT int posix_fallocate64(int fd, off64_t offset, off64_t len) {
    int saved = errno, rc = fallocate64(fd, 0, offset, len) == 0 ? 0 : errno;
    errno = saved;
    return rc;
}
EXPORT int posix_fallocate(int fd, off_t offset, off_t len) { return posix_fallocate64(fd, offset, len); }

/* ---- sync ---- */

static int recorded_sync(int fd, long number) {
    char buf[PATH_MAX];
    struct stat st;
    const char *path = path_of_fd(fd, buf, &st);
    if (!path) return syscall(number, fd);
    int is_dir = S_ISDIR(st.st_mode), flags = is_dir ? FLAG_DIR : 0;
    const char *name = is_dir ? path : NULL;

    lock();
    int error = is_dir ? 0 : fault_for(FAULT_FSYNC);
    if (!error && is_left_out(path)) {
        unlock(0);
        return 0;
    }
    uint64_t token = (uint64_t)getpid() << 32 | ++sync_token;
    emit(OP_SYNC_BEGIN, flags, name, NULL, st.st_ino, token, NULL, 0);
    unlock(0);

    int rc = -1;
    if (!error) {
        rc = syscall(number, fd);
        error = errno;
    }

    lock();
    emit(OP_SYNC_END, flags | (rc ? FLAG_FAILED : 0), name, NULL, st.st_ino, token, NULL, 0);
    unlock(error);
    return rc;
}
EXPORT int fsync(int fd) { return recorded_sync(fd, SYS_fsync); }
EXPORT int fdatasync(int fd) { return recorded_sync(fd, SYS_fdatasync); }

/* ---- names ---- */

EXPORT int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    char from_buf[PATH_MAX], to_buf[PATH_MAX];
    struct stat st = {0};
    const char *from_path = path_of_name(from_fd, from, from_buf), *to_path = path_of_name(to_fd, to, to_buf);
    if (!from_path && !to_path) return syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    if (flags & ~RENAME_NOREPLACE) return errno = EINVAL, -1;
    lock();
    int rc = syscall(SYS_renameat2, from_fd, from, to_fd, to, flags), error = errno;
    if (rc == 0) {
        fstatat(to_fd, to, &st, AT_SYMLINK_NOFOLLOW);
        int kind = S_ISDIR(st.st_mode) ? FLAG_DIR : 0;
        if (to_path) emit(OP_RENAME, kind, from_path, to_path, st.st_ino, 0, NULL, 0);
        else emit(OP_UNLINK, kind, from_path, NULL, st.st_ino, 0, NULL, 0);
    }
    unlock(error);
    return rc;
}
EXPORT int renameat(int from_fd, const char *from, int to_fd, const char *to) { return renameat2(from_fd, from, to_fd, to, 0); }
EXPORT int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

EXPORT int unlinkat(int dirfd, const char *name, int flags) {
    char buf[PATH_MAX];
    const char *path = flags & AT_REMOVEDIR ? NULL : path_of_name(dirfd, name, buf);
    if (!path) return syscall(SYS_unlinkat, dirfd, name, flags);
    lock();
    int rc = syscall(SYS_unlinkat, dirfd, name, flags), error = errno;
    if (rc == 0) emit(OP_UNLINK, 0, path, NULL, 0, 0, NULL, 0);
    unlock(error);
    return rc;
}
EXPORT int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }

EXPORT int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    char buf[PATH_MAX];
    struct stat st = {0};
    const char *path = path_of_name(to_fd, to, buf);
    if (!path) return syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    lock();
    int rc = syscall(SYS_linkat, from_fd, from, to_fd, to, flags), error = errno;
    if (rc == 0) {
        fstatat(to_fd, to, &st, AT_SYMLINK_NOFOLLOW);
        emit(OP_LINK, 0, NULL, path, st.st_ino, 0, NULL, 0);
    }
    unlock(error);
    return rc;
}
EXPORT int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
