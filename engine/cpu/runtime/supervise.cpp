// Runs jobs, each in a process of its own with two deadlines: supervise STATUS PARALLEL COMPUTING_MS WAITING_MS WORKER JOB...
// One is of processor time, as on a busy machine a run takes longer for no fault of its own; the other ends it in any case.
// WORKER is started once and makes a process of itself for each job, a child of this one: what it sets up first, as hundreds of
// ThreadSanitizer's fibres of 1.5 MB each, is set up once.
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

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Run {
    pid_t pid = 0;
    int number = 0;
    int slot = 0;  // of those that run at a time; each has a log
    double end = 0;
};

struct Worker {
    int control = -1, answers = -1;
};

constexpr off_t LOG_BYTES = 64 << 10;
constexpr size_t SAID_BYTES = 300;
int status_fd = -1;
std::vector<int> logs;

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

void report(const Run &run, const char *how, int code, bool said) {
    std::string line = std::to_string(run.number) + ' ' + how;
    if (code >= 0) line += ' ' + std::to_string(code);
    char text[SAID_BYTES];
    ssize_t count = said ? pread(logs[static_cast<size_t>(run.slot)], text, sizeof text, 0) : 0;
    if (count > 0 && text[0]) line += ' ';
    for (ssize_t i = 0; i < count && text[i]; ++i) line += text[i] >= ' ' && text[i] <= '~' ? text[i] : ' ';
    line += '\n';
    if (write(status_fd, line.data(), line.size()) < 0) _exit(4);
}

bool start_worker(char **words, int slots, Worker &worker) {
    int control[2], answers[2];
    if (pipe2(control, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) return false;
    std::vector<std::string> given{words[0], std::to_string(control[0]), std::to_string(answers[1]), std::to_string(slots)};
    for (int log : logs) given.push_back(std::to_string(log));
    for (char **job = words + 1; *job; ++job) given.push_back(*job);
    std::vector<char *> argv;
    for (std::string &each : given) argv.push_back(each.data());
    argv.push_back(nullptr);
    pid_t pid = fork();
    if (pid < 0) return false;
    if (pid == 0) {
        // ThreadSanitizer's shadow memory wants addresses where it expects them.
        personality(ADDR_NO_RANDOMIZE);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int fd : {0, 1, 2}) dup2(null, fd);
        rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        for (int fd : logs) fcntl(fd, F_SETFD, 0);
        for (int fd : {control[0], answers[1]}) fcntl(fd, F_SETFD, 0);
        execv(words[0], argv.data());
        _exit(127);
    }
    close(control[0]);
    close(answers[1]);
    worker = {control[1], answers[0]};
    return true;
}

// The process of a job, started by the worker as a child of this process; 0 where the worker has ended.
pid_t start(const Worker &worker, const Run &run) {
    int log = logs[static_cast<size_t>(run.slot)];
    static const char nothing[SAID_BYTES] = {};
    if (pwrite(log, nothing, sizeof nothing, 0) < 0 || lseek(log, 0, SEEK_SET) != 0) return 0;
    int asked[2] = {run.number, run.slot};
    pid_t pid = 0;
    if (write(worker.control, asked, sizeof asked) != sizeof asked || read(worker.answers, &pid, sizeof pid) != sizeof pid) return 0;
    if (pid > 0) setpgid(pid, pid);
    return pid > 0 ? pid : 0;
}

}  // namespace

int main(int count, char **words) {
    constexpr int FIRST = 6;
    if (count <= FIRST) return 2;
    status_fd = std::atoi(words[1]);
    if (fcntl(status_fd, F_SETFD, FD_CLOEXEC) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0) return 4;
    int parallel = std::atoi(words[2]);
    double computing = std::atof(words[3]) / 1000.0, waiting = std::atof(words[4]) / 1000.0;
    signal(SIGPIPE, SIG_IGN);
    parallel = std::max(1, std::min(parallel, count - FIRST));
    std::vector<bool> busy(static_cast<size_t>(parallel));
    for (int i = 0; i < parallel; ++i) {
        logs.push_back(make_log());
        if (logs.back() < 0) return 3;
    }
    Worker worker;
    if (!start_worker(words + FIRST - 1, parallel, worker)) return 3;
    std::vector<Run> running;
    int next = FIRST;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    while (next < count || !running.empty()) {
        while (next < count && static_cast<int>(running.size()) < parallel) {
            Run run;
            run.number = next++ - FIRST;
            run.slot = static_cast<int>(std::find(busy.begin(), busy.end(), false) - busy.begin());
            run.pid = start(worker, run);
            if (run.pid == 0) return 3;
            run.end = now() + waiting;
            busy[static_cast<size_t>(run.slot)] = true;
            running.push_back(run);
        }
        timespec wait{0, 20000000};
        sigtimedwait(&set, nullptr, &wait);
        for (size_t i = 0; i < running.size();) {
            Run &w = running[i];
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
            busy[static_cast<size_t>(w.slot)] = false;
            running.erase(running.begin() + static_cast<long>(i));
        }
    }
    return 0;
}
