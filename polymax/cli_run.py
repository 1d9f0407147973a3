from polymax.cli import main

main()
