/* Calls that programs make in ways that are easy to get wrong. Prints what it sees; what it prints and
   leaves has to be the same with and without interception. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define SAY(...) (printf(__VA_ARGS__), printf("\n"))
#define FAILS(call) do { errno = 0; long got = (call); SAY("%s: %ld %s", #call, got, strerror(errno)); } while (0)
#define TRY(call) ((call) < 0 ? (printf("%s: %s\n", #call, strerror(errno)), -1) : 0)

static void show(const char *name) {
    char text[4096];
    int file = open(name, O_RDONLY);
    if (file < 0) { SAY("%s: %s", name, strerror(errno)); return; }
    ssize_t count = read(file, text, sizeof text - 1);
    text[count < 0 ? 0 : count] = 0;
    for (ssize_t i = 0; i < count; i++) if (!text[i]) text[i] = '0';
    SAY("%s has %zd: %s", name, count, text);
    close(file);
}

static void same_file(int file, const char *name) {
    struct stat a, b;
    struct statfs c, d;
    struct statx e;
    TRY(fstat(file, &a));
    TRY(stat(name, &b));
    TRY(fstatfs(file, &c));
    TRY(statfs(".", &d));
    TRY(statx(file, "", AT_EMPTY_PATH, STATX_ALL, &e));
    SAY("same file %d, mode %o, %ld bytes, times equal %d, file system %d, statx %d %ld", a.st_dev == b.st_dev && a.st_ino == b.st_ino,
        a.st_mode, (long)a.st_size, a.st_mtim.tv_nsec == b.st_mtim.tv_nsec, c.f_type == d.f_type, e.stx_ino == a.st_ino, (long)e.stx_size);
}

static void offsets_and_flags(void) {
    int file = open("offsets", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
    SAY("cloexec %d, flags %x", fcntl(file, F_GETFD), fcntl(file, F_GETFL) & (O_ACCMODE | O_APPEND));
    TRY(write(file, "0123456789", 10));
    same_file(file, "offsets");
    int copy = dup(file);
    if (fork() == 0) { TRY(write(copy, "child", 5)); _exit(0); }
    wait(0);
    SAY("at %ld", (long)lseek(file, 0, SEEK_CUR));
    int again = open("offsets", O_WRONLY | O_APPEND);
    SAY("flags %x", fcntl(again, F_GETFL) & (O_ACCMODE | O_APPEND));
    TRY(pwrite(again, "end", 3, 0));
    close(file); close(copy); close(again);
    show("offsets");
    FAILS(open("offsets", O_CREAT | O_EXCL | O_WRONLY, 0600));
    FAILS(open(".", O_WRONLY));
    FAILS(open("no/such", O_WRONLY | O_CREAT, 0600));
    FAILS(open("offsets/", O_WRONLY));
    FAILS(open((const char *)memset(calloc(1, 5001), 'x', 5000), O_WRONLY | O_CREAT, 0600));
    FAILS(syscall(SYS_openat, AT_FDCWD, (char *)1, O_WRONLY, 0));
}

static void raw_calls(void) {
    long file = syscall(SYS_creat, "raw", 0600);
    TRY(syscall(SYS_write, file, "raw bytes", 9));
    TRY(syscall(SYS_close, file));
    struct { unsigned long flags, mode, resolve; } how = {O_WRONLY | O_CREAT, 0600, 0x08};
    file = syscall(SYS_openat2, AT_FDCWD, "raw2", &how, sizeof how);
    TRY(syscall(SYS_write, file, "beneath", 7));
    TRY(syscall(SYS_close, file));
    FAILS(syscall(SYS_openat2, AT_FDCWD, "/etc/passwd", &how, sizeof how));
    show("raw"); show("raw2");
}

static void mappings(void) {
    int file = open("mapped", O_RDWR | O_CREAT, 0644);
    TRY(ftruncate(file, 8192));
    char *memory = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    strcpy(memory, "before");
    strcpy(memory + 4096, "through the mapping");
    TRY(msync(memory, 8192, MS_SYNC));
    char text[20];
    file = open("mapped", O_RDONLY);
    TRY(pread(file, text, 20, 4096));
    SAY("%s", text);
    close(file);
    /* The page is writable by now: the system does not notice. */
    strcpy(memory + 4096 + 100, "again");
    munmap(memory, 8192);
    /* An existing file that is changed by a mapping alone. */
    file = open("existing", O_RDWR);
    memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    memcpy(memory + 1, "MAPPED", 6);
    munmap(memory, 4096);
    show("existing");
}

static void names(void) {
    char path[64], target[4096] = "", here[4096];
    int file = open("first", O_RDWR | O_CREAT, 0600);
    TRY(write(file, "bytes", 5));
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    ssize_t count = readlink(path, target, sizeof target - 1);
    SAY("link is right: %d", count > 0 && getcwd(here, sizeof here) && !strncmp(target, here, strlen(here)) && strstr(target, "first"));
    int again = open(path, O_RDONLY);
    char text[6] = "";
    TRY(read(again, text, 5));
    SAY("again: %s", text);
    same_file(again, "first");
    close(again);
    TRY(rename("first", "second"));
    TRY(write(file, " more", 5));
    TRY(link("second", "third"));
    TRY(unlink("second"));
    same_file(file, "third");
    close(file);
    show("third");
    int temporary = open(".", O_TMPFILE | O_RDWR, 0600);
    TRY(write(temporary, "no name yet", 11));
    snprintf(path, sizeof path, "/proc/self/fd/%d", temporary);
    TRY(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    close(temporary);
    show("named");
    TRY(symlink("to-be-made", "dangling"));
    file = open("dangling", O_WRONLY | O_CREAT, 0600);
    TRY(write(file, "through the link", 16));
    close(file);
    show("to-be-made");
    FAILS(open("dangling", O_WRONLY | O_NOFOLLOW));
    int directory = open("sub", O_RDONLY | O_DIRECTORY);
    file = openat(directory, "inside", O_WRONLY | O_CREAT, 0600);
    TRY(write(file, "inside", 6));
    close(file);
    TRY(fchdir(directory));
    show("inside");
    TRY(chdir(".."));
    TRY(renameat(directory, "inside", AT_FDCWD, "outside"));
    show("sub/../outside");
}

static void cuts(void) {
    int file = open("cut", O_RDWR | O_CREAT, 0600);
    TRY(write(file, "0123456789", 10));
    TRY(truncate("cut", 4));
    struct stat cut;
    TRY(fstat(file, &cut));
    SAY("cut to %ld", (long)cut.st_size);
    TRY(write(file, "after", 5));
    int other = open("cut", O_WRONLY | O_TRUNC);
    struct stat about;
    TRY(fstat(file, &about));
    SAY("%ld bytes", (long)about.st_size);
    TRY(write(other, "new", 3));
    close(file); close(other);
    show("cut");
    file = open("holes", O_WRONLY | O_CREAT, 0600);
    TRY(pwrite(file, "x", 1, 1 << 20));
    TRY(fallocate(file, 0, 0, 4096));
    TRY(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, 4096));
    TRY(ftruncate(file, 3 << 20));
    close(file);
    TRY(stat("holes", &about));
    SAY("%ld bytes, sparse %d", (long)about.st_size, about.st_blocks * 512 < 1 << 20);
}

static void locks(void) {
    int file = open("locked", O_RDWR | O_CREAT, 0600);
    TRY(flock(file, LOCK_EX));
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    TRY(fcntl(file, F_SETLK, &range));
    fflush(stdout);
    if (fork() == 0) {
        int other = open("locked", O_RDWR);
        SAY("flock: %d", flock(other, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK);
        SAY("range: %d", fcntl(other, F_SETLK, &range) < 0);
        fflush(stdout);
        _exit(0);
    }
    wait(0);
    TRY(write(file, "held", 4));
    close(file);
    show("locked");
}

static void attributes(void) {
    char text[100];
    int file = open("attributes", O_RDWR | O_CREAT, 0600);
    TRY(write(file, "x", 1));
    TRY(fchmod(file, 0604));
    TRY(fsetxattr(file, "user.note", "hello", 5, 0));
    SAY("%zd of %zd", fgetxattr(file, "user.note", text, sizeof text), fgetxattr(file, "user.note", 0, 0));
    SAY("list %zd %zd %s", flistxattr(file, text, sizeof text), listxattr("attributes", 0, 0), text);
    FAILS(fgetxattr(file, "user.note", text, 2));
    TRY(fsetxattr(file, "user.other", "", 0, 0));
    TRY(fremovexattr(file, "user.other"));
    struct timeval times[2] = {{1000000000, 1}, {1000000001, 2}};
    TRY(utimes("attributes", times));
    same_file(file, "attributes");
    close(file);
    file = open("attributes", O_WRONLY | O_APPEND);
    struct timespec exact[2] = {{1000000002, 3}, {1000000003, 4}};
    TRY(write(file, "y", 1));
    TRY(futimens(file, exact));
    close(file);
    struct stat about;
    TRY(stat("attributes", &about));
    SAY("%o %ld.%09ld", about.st_mode, (long)about.st_mtim.tv_sec, about.st_mtim.tv_nsec);
    file = open("mode-444", O_WRONLY | O_CREAT, 0444);
    TRY(write(file, "read-only", 9));
    TRY(fsync(file));
    close(file);
    show("mode-444");
}

static void moves(void) {
    int from = open("existing", O_RDONLY), to = open("sent", O_WRONLY | O_CREAT, 0600);
    SAY("sent %zd", sendfile(to, from, 0, 100));
    close(from); close(to);
    show("sent");
    FILE *stream = fopen("stream", "w+");
    fprintf(stream, "line %d\n", 1);
    fflush(stream);
    struct stat about;
    TRY(stat("stream", &about));
    SAY("%ld bytes while open", (long)about.st_size);
    stream = freopen("stream2", "w", stream);
    fprintf(stream, "other\n");
    fclose(stream);
    show("stream"); show("stream2");
    sync();
}

int main(void) {
    umask(026);
    mkdir("sub", 0755);
    offsets_and_flags(); raw_calls(); mappings(); names(); cuts(); locks(); attributes(); moves();
    return 0;
}
