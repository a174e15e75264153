// Runs jobs, each in a process of its own with two deadlines: supervise PARALLEL COMPUTING_MS WAITING_MS WORKER JOB...
// One is of processor time, as on a busy machine a run takes longer for no fault of its own; the other ends it in any case.
// Says on stdout how each ended: "NUMBER ok", "NUMBER timeout", "NUMBER exit CODE", "NUMBER signal NUMBER".
#include <fcntl.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Worker {
    pid_t pid = 0;
    int number = 0;
    double end = 0;
};

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

pid_t start(const char *worker, const char *job) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    setpgid(0, 0);
    // ThreadSanitizer's shadow memory wants addresses where it expects them.
    personality(ADDR_NO_RANDOMIZE);
    std::string log = std::string(job) + ".log";
    int null = open("/dev/null", O_RDWR), out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(null, 0);
    dup2(null, 1);
    dup2(out >= 0 ? out : null, 2);
    rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    execl(worker, worker, job, static_cast<char *>(nullptr));
    _exit(127);
}

}  // namespace

int main(int count, char **words) {
    if (count < 6) return 2;
    int parallel = std::atoi(words[1]);
    double computing = std::atof(words[2]) / 1000.0, waiting = std::atof(words[3]) / 1000.0;
    std::vector<Worker> running;
    int next = 5;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    while (next < count || !running.empty()) {
        while (next < count && static_cast<int>(running.size()) < parallel) {
            Worker w;
            w.number = next - 5;
            w.end = now() + waiting;
            w.pid = start(words[4], words[next++]);
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
                    printf("%d signal %d\n", w.number, WTERMSIG(status));
                } else if (WEXITSTATUS(status) != 0) {
                    printf("%d exit %d\n", w.number, WEXITSTATUS(status));
                } else {
                    printf("%d ok\n", w.number);
                }
            } else if (computed(w.pid) > computing || now() > w.end) {
                kill(-w.pid, SIGKILL);
                kill(w.pid, SIGKILL);
                waitpid(w.pid, &status, 0);
                printf("%d timeout\n", w.number);
            } else {
                ++i;
                continue;
            }
            fflush(stdout);
            running.erase(running.begin() + static_cast<long>(i));
        }
    }
    return 0;
}
