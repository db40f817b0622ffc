/* Faults at the border between a process and the system, for tests/faults/run.py.
 *
 * Preloaded (LD_PRELOAD), this library stands between a process and libc. It numbers the calls that
 * touch files below `root`, sockets, and new processes: the fault points. At one of them, it does
 * what `mode` says. Calls of SQLite and PyTorch count like Python's own, which patching `os` would
 * miss. Not seen: reads, and what libc does within itself, such as the writes of stdio.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MOST_FILES 512

enum { OFF, COUNT, ERROR, FULL, KILL, POWER, STALL, TERM };

static int mode = OFF, error_number, log_descriptor = -1;
static long point, stall_microseconds;
static char root[PATH_MAX];
static atomic_long calls;
static atomic_int fault_done; /* by FULL: the first write was cut short */

/* Files written since they were last synced: what a power cut may take away. */
static struct { dev_t device; ino_t inode; int descriptor; off_t synced; } unsynced[MOST_FILES];
static int unsynced_count;

void fault_arm(const char *folder, int chosen, long at, int number, long microseconds, int log) {
    strncpy(root, folder, sizeof root - 1);
    point = at, error_number = number, stall_microseconds = microseconds, log_descriptor = log;
    calls = 0;
    fault_done = unsynced_count = 0;
    mode = chosen;
}

long fault_calls(void) { return calls; }

/* Programs are armed by FAULT=mode:point:errno:microseconds:root; a point of -n is every n-th. */
__attribute__((constructor)) static void arm_from_environment(void) {
    const char *given = getenv("FAULT");
    int chosen, number, length = 0;
    long at, microseconds;
    if (given && sscanf(given, "%d:%ld:%d:%ld:%n", &chosen, &at, &number, &microseconds, &length) == 4
        && length)
        fault_arm(given + length, chosen, at, number, microseconds, -1);
}

static void lose_unsynced(void) {
    for (int i = 0; i < unsynced_count; i++) {
        struct stat now;
        if (!fstat(unsynced[i].descriptor, &now) && now.st_size > unsynced[i].synced)
            REAL(ftruncate64)(unsynced[i].descriptor, unsynced[i].synced);
    }
}

static void track_write(int descriptor) {
    struct stat now;
    if (mode != POWER || fstat(descriptor, &now) || !S_ISREG(now.st_mode)) return;
    for (int i = 0; i < unsynced_count; i++)
        if (unsynced[i].device == now.st_dev && unsynced[i].inode == now.st_ino) return;
    if (unsynced_count == MOST_FILES) return;
    char own[64];
    snprintf(own, sizeof own, "/proc/self/fd/%d", descriptor);
    int copy = REAL(open64)(own, O_RDWR | O_CLOEXEC);
    if (copy < 0) return;
    __typeof__(&unsynced[0]) file = &unsynced[unsynced_count++];
    file->device = now.st_dev, file->inode = now.st_ino;
    file->descriptor = copy, file->synced = now.st_size;
}

static void track_sync(int descriptor) {
    struct stat now;
    if (mode != POWER || fstat(descriptor, &now)) return;
    for (int i = 0; i < unsynced_count; i++)
        if (unsynced[i].device == now.st_dev && unsynced[i].inode == now.st_ino)
            unsynced[i].synced = now.st_size;
}

/* Whether the call fails, with errno set. `*cut` says that half of a write is to be done first. */
static int faulted(const char *call, const char *path, int takes_space, int *cut) {
    long number = ++calls;
    if (log_descriptor >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%ld\t%s\t%s\n", number, call, path);
        REAL(write)(log_descriptor, line, length);
    }
    if (mode == FULL && number >= point && takes_space) {
        if (cut && !fault_done++) { *cut = 1; return 0; }
        fault_done = 1;
        errno = ENOSPC;
        return 1;
    }
    if (point < 0 ? number % -point : number != point) return 0;
    switch (mode) {
    case ERROR: errno = error_number; return 1;
    case KILL: case POWER: if (cut) { *cut = 1; return 0; } if (mode == POWER) lose_unsynced(); raise(SIGKILL); return 0;
    case STALL: usleep(stall_microseconds); return 0;
    case TERM: raise(SIGTERM); return 0;
    default: return 0;
    }
}

static const char *opening(int folder, const char *name, int flags) {
    struct stat found;
    if (flags & O_CREAT) return "create";
    return !fstatat(folder, name, &found, 0) && S_ISDIR(found.st_mode) ? "opendir" : "open";
}

static int is_inside(const char *path) {
    size_t length = strlen(root);
    return !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int of_descriptor(int descriptor, char *path) {
    char own[64];
    snprintf(own, sizeof own, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(own, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_inside(path);
}

static int of_name(int folder, const char *name, char *path) {
    if (!name) return 0;
    if (*name == '/') { snprintf(path, PATH_MAX, "%s", name); return is_inside(path); }
    char base[PATH_MAX];
    if (folder == AT_FDCWD) { if (!getcwd(base, sizeof base)) return 0; }
    else of_descriptor(folder, base);
    if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
    return is_inside(path);
}

#define PATH_FAULT(call, folder, name, space, failure) do { \
    char path_[PATH_MAX]; \
    if (mode != OFF && of_name(folder, name, path_) && faulted(call, path_, space, NULL)) \
        return failure; \
} while (0)

#define FILE_FAULT(call, descriptor, space) do { \
    char path_[PATH_MAX]; \
    if (mode != OFF && of_descriptor(descriptor, path_) && faulted(call, path_, space, NULL)) \
        return -1; \
} while (0)

#define PLAIN_FAULT(call) do { if (mode != OFF && faulted(call, "", 0, NULL)) return -1; } while (0)

/* The clock on the wall; where CLOCK_JUMPS is given, it jumps by an hour every so many seconds. */

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int period = -1;
    int failed = REAL(clock_gettime)(clock, now);
    if (clock != CLOCK_REALTIME || failed) return failed;
    if (period < 0) period = getenv("CLOCK_JUMPS") ? atoi(getenv("CLOCK_JUMPS")) : 0;
    if (period) now->tv_sec += 3600 * (now->tv_sec / period % 3 - 1);
    return 0;
}

/* Opening */

#define CREATES(flags) (((flags) & O_CREAT) != 0)
#define NEEDS_MODE(flags) (((flags) & (O_CREAT | O_TMPFILE)) != 0)
#define OPEN(name) \
    int name(const char *file, int flags, ...) { \
        va_list rest; va_start(rest, flags); \
        mode_t rights = NEEDS_MODE(flags) ? va_arg(rest, mode_t) : 0; va_end(rest); \
        PATH_FAULT(opening(AT_FDCWD, file, flags), AT_FDCWD, file, CREATES(flags), -1); \
        return REAL(name)(file, flags, rights); \
    }
#define OPENAT(name) \
    int name(int folder, const char *file, int flags, ...) { \
        va_list rest; va_start(rest, flags); \
        mode_t rights = NEEDS_MODE(flags) ? va_arg(rest, mode_t) : 0; va_end(rest); \
        PATH_FAULT(opening(folder, file, flags), folder, file, CREATES(flags), -1); \
        return REAL(name)(folder, file, flags, rights); \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

FILE *fopen(const char *file, const char *how) {
    PATH_FAULT(*how == 'r' ? "open" : "create", AT_FDCWD, file, *how == 'w', NULL);
    return REAL(fopen)(file, how);
}
FILE *fopen64(const char *file, const char *how) {
    PATH_FAULT(*how == 'r' ? "open" : "create", AT_FDCWD, file, *how == 'w', NULL);
    return REAL(fopen64)(file, how);
}

/* Writing: cut short, half of the bytes arrive. */

#define WRITE(declaration, descriptor, whole, half) \
    declaration { \
        char path_[PATH_MAX]; int cut = 0; \
        if (mode == OFF || !of_descriptor(descriptor, path_)) return whole; \
        if (faulted("write", path_, 1, &cut)) return -1; \
        track_write(descriptor); \
        if (!cut) return whole; \
        ssize_t written = size > 1 ? half : 0; \
        if (mode == POWER) lose_unsynced(); \
        if (mode == KILL || mode == POWER) raise(SIGKILL); \
        if (written > 0) return written; \
        errno = ENOSPC; return -1; \
    }
WRITE(ssize_t write(int file, const void *bytes, size_t size), file,
      REAL(write)(file, bytes, size), REAL(write)(file, bytes, size / 2))
WRITE(ssize_t pwrite(int file, const void *bytes, size_t size, off_t at), file,
      REAL(pwrite)(file, bytes, size, at), REAL(pwrite)(file, bytes, size / 2, at))
WRITE(ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t at), file,
      REAL(pwrite64)(file, bytes, size, at), REAL(pwrite64)(file, bytes, size / 2, at))
WRITE(ssize_t writev(int file, const struct iovec *parts, int size), file,
      REAL(writev)(file, parts, size), REAL(writev)(file, parts, size / 2))

int ftruncate(int file, off_t size) { FILE_FAULT("truncate", file, 0); return REAL(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { FILE_FAULT("truncate", file, 0); return REAL(ftruncate64)(file, size); }

/* Syncing and locking */

int fsync(int file) {
    FILE_FAULT("fsync", file, 0);
    track_sync(file);
    return REAL(fsync)(file);
}
int fdatasync(int file) {
    FILE_FAULT("fsync", file, 0);
    track_sync(file);
    return REAL(fdatasync)(file);
}
int flock(int file, int operation) { FILE_FAULT("lock", file, 0); return REAL(flock)(file, operation); }

#define FCNTL(name) \
    int name(int file, int command, ...) { \
        va_list rest; va_start(rest, command); void *argument = va_arg(rest, void *); va_end(rest); \
        if (command == F_SETLK || command == F_SETLKW) FILE_FAULT("lock", file, 0); \
        return REAL(name)(file, command, argument); \
    }
FCNTL(fcntl) FCNTL(fcntl64)

/* Names */

int mkdir(const char *path, mode_t rights) { PATH_FAULT("mkdir", AT_FDCWD, path, 1, -1); return REAL(mkdir)(path, rights); }
int mkdirat(int folder, const char *path, mode_t rights) { PATH_FAULT("mkdir", folder, path, 1, -1); return REAL(mkdirat)(folder, path, rights); }
int rename(const char *from, const char *to) { PATH_FAULT("rename", AT_FDCWD, from, 0, -1); return REAL(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) { PATH_FAULT("rename", a, from, 0, -1); return REAL(renameat)(a, from, b, to); }
int unlink(const char *path) { PATH_FAULT("unlink", AT_FDCWD, path, 0, -1); return REAL(unlink)(path); }
int unlinkat(int folder, const char *path, int flags) { PATH_FAULT("unlink", folder, path, 0, -1); return REAL(unlinkat)(folder, path, flags); }
int rmdir(const char *path) { PATH_FAULT("unlink", AT_FDCWD, path, 0, -1); return REAL(rmdir)(path); }

/* Processes: a child counts nothing, unless it is executed with FAULT in its environment. */

pid_t fork(void) {
    PLAIN_FAULT("fork");
    pid_t child = REAL(fork)();
    if (!child) mode = OFF;
    return child;
}
pid_t vfork(void) { return fork(); } /* whose child may return from here */

/* Sockets */

int socket(int domain, int type, int protocol) { PLAIN_FAULT("socket"); return REAL(socket)(domain, type, protocol); }
int connect(int one, const struct sockaddr *to, socklen_t size) { PLAIN_FAULT("connect"); return REAL(connect)(one, to, size); }
int bind(int one, const struct sockaddr *to, socklen_t size) { PLAIN_FAULT("bind"); return REAL(bind)(one, to, size); }
int listen(int one, int backlog) { PLAIN_FAULT("listen"); return REAL(listen)(one, backlog); }
int accept4(int one, struct sockaddr *from, socklen_t *size, int flags) { PLAIN_FAULT("accept"); return REAL(accept4)(one, from, size, flags); }
int accept(int one, struct sockaddr *from, socklen_t *size) { PLAIN_FAULT("accept"); return REAL(accept)(one, from, size); }
ssize_t send(int one, const void *bytes, size_t size, int flags) { PLAIN_FAULT("send"); return REAL(send)(one, bytes, size, flags); }
ssize_t recv(int one, void *bytes, size_t size, int flags) { PLAIN_FAULT("recv"); return REAL(recv)(one, bytes, size, flags); }
