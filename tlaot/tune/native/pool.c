/* The CPU thread pool behind TVMBackendParallelLaunch.
 *
 * One pool serves a process, whatever the number of executable.so files in it: the first file that launches registers its pool
 * under a global FFI name, the others find it there (executable.so is linked with -z nodelete, so its code stays).
 * Workers start at the first launch, spin briefly after work and then sleep on a futex. A job has a lane for each thread,
 * which holds its tasks; whoever finishes early takes the lanes that no one has begun, so that a thread which
 * the system keeps from running delays nobody. A launch that finds the pool busy, or that comes from inside a task, runs
 * in its own thread with one task. */
#define _GNU_SOURCE
#include "tlaot.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

TLAOT_OLD_GLIBC(pthread_create);
TLAOT_OLD_GLIBC(pthread_sigmask);

#define POOL_NAME "tlaot.parallel_launch.v1" /* the number changes with struct pool_api */
#define MAX_THREADS 1024
#define SPIN_NANOSECONDS 100000 /* longer than the gap between two launches of a hot loop, too short to matter */

typedef struct {
  void *sync_handle;
  int32_t num_task;
} group_env;
typedef int (*parallel_lambda)(int task_id, group_env *env, void *data);

struct pool_api {
  int (*launch)(parallel_lambda lambda, void *data, int num_task);
  int (*barrier)(int task_id, group_env *env);
};

struct barrier {
  _Atomic(uint32_t) arrived;
  _Atomic(uint32_t) round;
};

static struct {
  _Atomic(uint32_t) busy;
  _Atomic(uint32_t) generation; /* a new value is a new job; workers sleep on it */
  _Atomic(uint32_t) pending;    /* lanes that are not done; the caller sleeps on it */
  _Atomic(uint32_t) sleepers;
  _Atomic(uint32_t) caller_sleeps;
  bool started;
  bool spin;
  uint32_t workers; /* without the caller */
  /* the job */
  parallel_lambda lambda;
  void *data;
  int num_task;
  group_env env;
  struct barrier barrier;
  _Atomic(uint32_t) failed;
  void *error; /* FFI error object of the first task that failed */
  /* The last generation in which each lane was claimed: every job claims each lane exactly once. */
  struct {
    _Alignas(64) _Atomic(uint32_t) claimed;
  } lanes[MAX_THREADS];
} pool;

static _Thread_local bool in_task;

static void futex_wait(_Atomic(uint32_t) *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic(uint32_t) *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0); }

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spins while *word == value, for a short time; whether it changed. */
static bool spin_while(_Atomic(uint32_t) *word, uint32_t value) {
  if (!pool.spin) return atomic_load(word) != value;
  int64_t end = now() + SPIN_NANOSECONDS;
  do {
    for (int i = 0; i < 64; i++) {
      if (atomic_load_explicit(word, memory_order_acquire) != value) return true;
      relax();
    }
  } while (now() < end);
  return false;
}

/* The tasks of one lane, in this thread. */
static void run_lane(uint32_t lane, uint32_t lanes) {
  in_task = true;
  for (int task = (int)lane; task < pool.num_task; task += (int)lanes) {
    if (pool.lambda(task, &pool.env, pool.data) == 0) continue;
    void *error = NULL;
    TVMFFIErrorMoveFromRaised(&error);
    if (atomic_fetch_add(&pool.failed, 1) == 0) pool.error = error;
    else if (error) TVMFFIObjectDecRef(error);
  }
  in_task = false;
}

/* Runs this thread's own lane of a job and then every lane that no one has begun. A thread that comes too late finds all
 * of them claimed, and does not touch the job. */
static void take_part(uint32_t own, uint32_t generation) {
  uint32_t lanes = pool.workers + 1;
  for (uint32_t i = 0; i < lanes; i++) {
    uint32_t lane = (own + i) % lanes, before = generation - 1;
    if (!atomic_compare_exchange_strong(&pool.lanes[lane].claimed, &before, generation)) continue;
    run_lane(lane, lanes);
    if (atomic_fetch_sub(&pool.pending, 1) == 1 && atomic_load(&pool.caller_sleeps)) futex_wake(&pool.pending);
  }
}

static void *worker_main(void *argument) {
  uint32_t index = (uint32_t)(uintptr_t)argument, seen = 0;
  char name[16];
  snprintf(name, sizeof name, "tlaot-%u", index);
  prctl(PR_SET_NAME, name, 0, 0, 0);
  for (;;) {
    if (!spin_while(&pool.generation, seen)) {
      atomic_fetch_add(&pool.sleepers, 1);
      while (atomic_load(&pool.generation) == seen) futex_wait(&pool.generation, seen);
      atomic_fetch_sub(&pool.sleepers, 1);
    }
    seen = atomic_load(&pool.generation);
    take_part(index, seen);
  }
  return NULL;
}

static int read_number(const char *path, int which, long *out) {
  char text[64] = "";
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  size_t used = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[used] = 0;
  char *at = text;
  for (; which > 0 && *at; at++) which -= *at == ' ';
  if (*at < '0' || *at > '9') return -1; /* "max", or -1: no quota */
  for (*out = 0; *at >= '0' && *at <= '9'; at++) *out = *out * 10 + (*at - '0');
  return 0;
}

/* CPUs that the control group's quota pays for; a large number without a quota. */
static int quota_cpus(void) {
  long quota, period;
  if ((read_number("/sys/fs/cgroup/cpu.max", 0, &quota) || read_number("/sys/fs/cgroup/cpu.max", 1, &period)) &&
      (read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 0, &quota) ||
       read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 0, &period)))
    return MAX_THREADS;
  return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : MAX_THREADS;
}

static int affinity_cpus(void) {
  size_t size = sizeof(cpu_set_t);
  for (int cpus = CPU_SETSIZE; cpus <= 65536; cpus *= 4, size = CPU_ALLOC_SIZE(cpus)) {
    cpu_set_t *set = calloc(1, size);
    if (!set) return 1;
    int result = sched_getaffinity(0, size, set), count = CPU_COUNT_S(size, set);
    free(set);
    if (result == 0) return count > 0 ? count : 1;
    if (errno != EINVAL) return 1;
  }
  return 1;
}

/* TLAOT_NUM_THREADS, else what the process may use. */
static int wanted_threads(int *out) {
  const char *text = getenv("TLAOT_NUM_THREADS");
  long number = 0;
  if (text == NULL || *text == 0) {
    int cpus = affinity_cpus(), quota = quota_cpus();
    *out = cpus < quota ? cpus : quota;
    if (*out > MAX_THREADS) *out = MAX_THREADS;
    return 0;
  }
  for (const char *at = text; *at; at++) {
    if (*at < '0' || *at > '9' || number > MAX_THREADS) number = MAX_THREADS + 1;
    else number = number * 10 + (*at - '0');
  }
  *out = (int)number;
  if (number >= 1 && number <= MAX_THREADS) return 0;
  return tlaot_fail("ValueError", "TLAOT_NUM_THREADS: expected a number from 1 to %d, got '%.64s'", MAX_THREADS, text);
}

/* The child of a fork has no workers, and no launch that was under way in another thread. */
static void forget_in_child(void) { memset(&pool, 0, sizeof pool); }

/* Called by the thread that holds `busy`. Fewer threads than wanted, where the system refuses more, is no error. */
static int start(void) {
  static bool hooked;
  int wanted;
  if (wanted_threads(&wanted)) return -1;
  if (!hooked) pthread_atfork(NULL, NULL, forget_in_child);
  hooked = true;
  sigset_t all, before;
  sigfillset(&all); /* inherited: signals stay with the program's own threads, but for a thread's own faults */
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pool.spin = wanted <= affinity_cpus();
  atomic_store(&pool.generation, 0);
  /* Workers read `workers` only after a job is published. */
  for (pool.workers = 0; (int)pool.workers < wanted - 1; pool.workers++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker_main, (void *)(uintptr_t)(pool.workers + 1))) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pool.started = true;
  return 0;
}

static int run_here(parallel_lambda lambda, void *data, int num_task) {
  /* One task does all the work, unless the code insists on a number. */
  group_env env = {NULL, num_task > 0 ? num_task : 1};
  for (int task = 0; task < env.num_task; task++) {
    int result = lambda(task, &env, data);
    if (result) return result;
  }
  return 0;
}

static int finish(void) {
  if (!atomic_load(&pool.failed)) return 0;
  void *error = pool.error;
  pool.error = NULL;
  atomic_store(&pool.failed, 0);
  if (!error) return tlaot_fail("RuntimeError", "a parallel task failed without saying why");
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
  return -1;
}

static int launch(parallel_lambda lambda, void *data, int num_task) {
  uint32_t idle = 0;
  if (in_task || !atomic_compare_exchange_strong(&pool.busy, &idle, 1)) return run_here(lambda, data, num_task);
  if (!pool.started && start()) {
    atomic_store(&pool.busy, 0);
    return -1;
  }
  uint32_t threads = pool.workers + 1;
  pool.lambda = lambda;
  pool.data = data;
  pool.num_task = num_task > 0 ? num_task : (int)threads;
  pool.env.num_task = pool.num_task;
  pool.env.sync_handle = pool.num_task <= (int)threads ? &pool.barrier : NULL;
  atomic_store(&pool.barrier.arrived, 0);
  atomic_store(&pool.caller_sleeps, 0);
  atomic_store(&pool.pending, threads);
  uint32_t generation = atomic_fetch_add(&pool.generation, 1) + 1;
  if (atomic_load(&pool.sleepers)) futex_wake(&pool.generation);
  take_part(0, generation);
  uint32_t left;
  while ((left = atomic_load(&pool.pending)) != 0) {
    if (spin_while(&pool.pending, left)) continue;
    atomic_store(&pool.caller_sleeps, 1);
    while ((left = atomic_load(&pool.pending)) != 0) futex_wait(&pool.pending, left);
  }
  int result = finish();
  atomic_store(&pool.busy, 0);
  return result;
}

/* All tasks of a job that may use a barrier run at the same time, so waiting by yielding is enough. */
static int barrier_wait(int task_id, group_env *env) {
  struct barrier *barrier = env->sync_handle;
  (void)task_id;
  if (env->num_task <= 1) return 0;
  if (!barrier) return tlaot_fail("RuntimeError", "a parallel loop with a barrier asks for more tasks than there are threads");
  uint32_t round = atomic_load(&barrier->round);
  if (atomic_fetch_add(&barrier->arrived, 1) + 1 == (uint32_t)env->num_task) {
    atomic_store(&barrier->arrived, 0);
    atomic_fetch_add(&barrier->round, 1);
    return 0;
  }
  while (atomic_load(&barrier->round) == round) {
    if (atomic_load(&pool.failed)) return -1; /* a task that failed never arrives */
    if (!spin_while(&barrier->round, round)) sched_yield();
  }
  return 0;
}

static const struct pool_api own_api = {launch, barrier_wait};

static int give_api(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result) {
  (void)self, (void)args, (void)num_args;
  result->type_index = kTVMFFIOpaquePtr;
  result->zero_padding = 0;
  result->v_ptr = (void *)&own_api;
  return 0;
}

static int ask_api(const TVMFFIByteArray *name, const struct pool_api **out) {
  void *function = NULL;
  TVMFFIAny result = {.type_index = kTVMFFINone};
  if (TVMFFIFunctionGetGlobal(name, &function)) return -1;
  *out = NULL;
  if (!function) return 0;
  int status = TVMFFIFunctionCall(function, NULL, 0, &result);
  TVMFFIObjectDecRef(function);
  if (status) return -1;
  *out = result.v_ptr;
  return 0;
}

/* The process's pool: another file's, or this one's if it registers first. */
static const struct pool_api *find_api(void) {
  static _Atomic(const struct pool_api *) known;
  const struct pool_api *api = atomic_load(&known);
  if (api) return api;
  const TVMFFIByteArray name = {POOL_NAME, sizeof POOL_NAME - 1};
  if (ask_api(&name, &api)) return NULL;
  if (!api) {
    void *function = NULL, *lost = NULL;
    if (TVMFFIFunctionCreate(NULL, give_api, NULL, &function)) return NULL;
    /* Fails where another thread has just registered; then the answer is theirs. */
    if (TVMFFIFunctionSetGlobal(&name, function, 0)) TVMFFIErrorMoveFromRaised(&lost);
    if (lost) TVMFFIObjectDecRef(lost);
    TVMFFIObjectDecRef(function);
    if (ask_api(&name, &api) || !api) return NULL;
  }
  atomic_store(&known, api);
  return api;
}

TLAOT_HIDDEN int TVMBackendParallelLaunch(parallel_lambda lambda, void *data, int num_task) {
  const struct pool_api *api = find_api();
  return api ? api->launch(lambda, data, num_task) : -1;
}

TLAOT_HIDDEN int TVMBackendParallelBarrier(int task_id, group_env *env) {
  if (env->num_task <= 1) return 0;
  const struct pool_api *api = find_api();
  return api ? api->barrier(task_id, env) : -1;
}
