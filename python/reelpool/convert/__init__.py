"""v2.0 and v2.1 datasets to v3.0: a fixed plan, work shared by files, an atomic exchange.

`source` reads and judges what is there, `plan` packs it, `data_files` and `metadata` make the new
files (the core joins videos), `work` shares items among threads, processes and hosts, `swap`
puts the result in place. `job` knows the steps in their order, `run` drives them in one process or
several, `engines` on a cluster; `hub` fetches and pushes.
"""
