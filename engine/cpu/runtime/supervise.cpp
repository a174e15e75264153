// Runs jobs, each in a process of its own with two deadlines: supervise STATUS PARALLEL COMPUTING_MS WAITING_MS WORKER JOB...
// One is of processor time, as on a busy machine a run takes longer for no fault of its own; the other ends it in any case.
// Reports on the descriptor STATUS how each ended: "NUMBER ok", "NUMBER timeout", "NUMBER exit CODE", "NUMBER signal NUMBER", and the
// first characters of what it wrote to standard error behind the last two.
// What runs in a worker is untrusted and the same user. It must not be able to write a verdict: no worker has STATUS, and this process
// is not dumpable, so neither its memory nor its descriptors can be opened through /proc.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Worker {
    pid_t pid = 0;
    int number = 0;
    int log = -1;
    double end = 0;
};

constexpr off_t LOG_BYTES = 64 << 10;
constexpr size_t SAID_BYTES = 300;
int status_fd = -1;

double seconds(clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double now() { return seconds(CLOCK_MONOTONIC); }

double computed(pid_t pid) {
    clockid_t clock;
    return clock_getcpuclockid(pid, &clock) == 0 ? seconds(clock) : 0;
}

// A file in memory of a fixed size: a worker that writes without end fills nothing.
int make_log() {
    int log = memfd_create("log", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (log >= 0 && (ftruncate(log, LOG_BYTES) != 0 || fcntl(log, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)) return -1;
    return log;
}

void report(const Worker &w, const char *how, int code, bool said) {
    std::string line = std::to_string(w.number) + ' ' + how;
    if (code >= 0) line += ' ' + std::to_string(code);
    char text[SAID_BYTES];
    ssize_t count = said && w.log >= 0 ? pread(w.log, text, sizeof text, 0) : 0;
    if (count > 0 && text[0]) line += ' ';
    for (ssize_t i = 0; i < count && text[i]; ++i) line += text[i] >= ' ' && text[i] <= '~' ? text[i] : ' ';
    line += '\n';
    if (write(status_fd, line.data(), line.size()) < 0) _exit(4);
    if (w.log >= 0) close(w.log);
}

pid_t start(const char *worker, const char *job, int log) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    setpgid(0, 0);
    // ThreadSanitizer's shadow memory wants addresses where it expects them.
    personality(ADDR_NO_RANDOMIZE);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 0);
    dup2(null, 1);
    dup2(log >= 0 ? log : null, 2);
    rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    execl(worker, worker, job, static_cast<char *>(nullptr));
    _exit(127);
}

}  // namespace

int main(int count, char **words) {
    constexpr int FIRST = 6;
    if (count <= FIRST) return 2;
    status_fd = std::atoi(words[1]);
    if (fcntl(status_fd, F_SETFD, FD_CLOEXEC) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0) return 4;
    int parallel = std::atoi(words[2]);
    double computing = std::atof(words[3]) / 1000.0, waiting = std::atof(words[4]) / 1000.0;
    std::vector<Worker> running;
    int next = FIRST;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    while (next < count || !running.empty()) {
        while (next < count && static_cast<int>(running.size()) < parallel) {
            Worker w;
            w.number = next - FIRST;
            w.end = now() + waiting;
            w.log = make_log();
            w.pid = start(words[FIRST - 1], words[next++], w.log);
            if (w.pid < 0) return 3;
            running.push_back(w);
        }
        timespec wait{0, 20000000};
        sigtimedwait(&set, nullptr, &wait);
        for (size_t i = 0; i < running.size();) {
            Worker &w = running[i];
            int status = 0;
            if (waitpid(w.pid, &status, WNOHANG) == w.pid) {
                kill(-w.pid, SIGKILL);  // whatever it has left behind
                if (WIFSIGNALED(status)) {
                    report(w, "signal", WTERMSIG(status), true);
                } else if (WEXITSTATUS(status) != 0) {
                    report(w, "exit", WEXITSTATUS(status), true);
                } else {
                    report(w, "ok", -1, false);
                }
            } else if (computed(w.pid) > computing || now() > w.end) {
                kill(-w.pid, SIGKILL);
                kill(w.pid, SIGKILL);
                waitpid(w.pid, &status, 0);
                report(w, "timeout", -1, false);
            } else {
                ++i;
                continue;
            }
            running.erase(running.begin() + static_cast<long>(i));
        }
    }
    return 0;
}
