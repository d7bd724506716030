/* Runs driver.cc: linked with it, or (with PLUGIN) loading it into a scope of its own, as programs load plug-ins. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef PLUGIN
int main(int argc, char **argv) {
  void *library = dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  int (*drive)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "drive") : NULL;
  if (!drive) return fprintf(stderr, "%s\n", dlerror()), 3;
  return drive(argc, argv);
}
#else
int drive(int argc, char **argv);
int main(int argc, char **argv) { return drive(argc, argv); }
#endif
