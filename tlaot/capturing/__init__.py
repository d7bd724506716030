"""What an author's own workload calls: recorded under TileLang's JIT, then written into ``tltune.toml``; ``tlaot capture``.

``watch`` puts the hook into a process (``tilelang_hook``; ``dry``, where nothing is to run), ``journal`` is what it writes,
``recording`` reads what all processes wrote, ``workloads`` chooses from it, ``proposal`` holds that against a spec, and
``spec_edit`` puts the difference into the file's text.
"""
